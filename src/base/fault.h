/* Bugs and lost hardware. CHECK prints the failed condition, its place and the rank, then ends the whole process:
 * abort() ends every rank that is a thread, and the other processes end when they detect it. */
#pragma once

#include <setjmp.h>

#define CHECK(cond, ...) ((cond) ? (void)0 : fault(__FILE__, __LINE__, #cond, __VA_ARGS__))

_Noreturn void fault(const char *file, int line, const char *cond, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* The current activity of this thread, for the message of a fault. This is the only per-thread state in the
 * program: a rank is a thread, and a fault deep in a kernel must be able to name it. */
typedef struct FaultScope {
    char where[120];    /* "rank 3 (tp 1 dp 1)" */
    char op[32];        /* the op that is running, empty between ops */
    jmp_buf *catch_jmp; /* tests only: jump here instead of abort() */
    char message[512];  /* filled before the jump */
} FaultScope;

/* Installs the scope of the calling thread (NULL: none) and returns the previous one. */
FaultScope *fault_scope(FaultScope *scope);
/* The scope of the calling thread, NULL if none is installed. */
FaultScope *fault_scope_now(void);

/* From here on, the loss of a page of a mapped file (the file was truncated, its disk failed) ends the
 * process with exit status ERR_INFRA and a message that names the file. */
void fault_on_lost_pages(void);
