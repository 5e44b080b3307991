/* Bugs and lost hardware. CHECK prints the failed condition, its place and the rank, then calls abort(). This
 * ends all ranks that are threads of the process; the other processes detect it and end too. */
#pragma once

#include <setjmp.h>

#define CHECK(cond, ...) ((cond) ? (void)0 : fault(__FILE__, __LINE__, #cond, __VA_ARGS__))

_Noreturn void fault(const char *file, int line, const char *cond, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* The current work of this thread, for the message of a fault. This is the program's only thread-local state.
 * It is needed because ranks can be threads, and a fault deep in a kernel must name the rank. */
typedef struct FaultScope {
    char where[120];    /* "rank 3 (tp 1 dp 1)" */
    char op[32];        /* the op that is running, empty between ops */
    jmp_buf *catch_jmp; /* tests only: jump here instead of abort() */
    char message[512];  /* filled before the jump */
} FaultScope;

/* Installs the scope of the calling thread, or removes it if the argument is NULL. Returns the previous
 * scope. */
FaultScope *fault_scope(FaultScope *scope);
/* The scope of the calling thread, NULL if none is installed. */
FaultScope *fault_scope_now(void);

/* Installs a handler: if a page of a mapped file is lost (the file was truncated, or its disk failed), the
 * process ends with exit status ERR_INFRA and a message that names the file. */
void fault_on_lost_pages(void);
