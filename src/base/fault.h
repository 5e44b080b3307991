/* Handles bugs and lost hardware. CHECK prints the failed condition, its place and the rank, and then calls abort().
 * This ends all ranks that are threads of the process. Other processes detect the end of this process and also
 * end. */
#pragma once

#include <setjmp.h>

#define CHECK(cond, ...) ((cond) ? (void)0 : fault(__FILE__, __LINE__, #cond, __VA_ARGS__))

_Noreturn void fault(const char *file, int line, const char *cond, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* The current work of a thread, for the messages of faults. FaultScope is the program's only thread-local state. It
 * is needed because ranks can be threads, and the message of a fault in a kernel must name the rank. */
typedef struct FaultScope {
    char where[120];    /* such as "rank 3 (tp 1 dp 1)" */
    char op[32];        /* the name of the current op, or empty between ops */
    jmp_buf *catch_jmp; /* for tests: the destination of a jump that replaces abort() */
    char message[512];  /* the message of the fault, set before the jump */
} FaultScope;

/* Installs the scope of the calling thread, or removes it if the argument is NULL. Returns the previous
 * scope. */
FaultScope *fault_scope(FaultScope *scope);
/* Returns the scope of the calling thread, or NULL if no scope is installed. */
FaultScope *fault_scope_now(void);

/* Installs a handler for lost pages of mapped files. If a page is lost (because the file was truncated, or its disk
 * failed), the process ends with exit status ERR_INFRA and a message that names the file. */
void fault_on_lost_pages(void);
