/* Handles bugs and failed hardware. CHECK prints the failed condition, its source location and the rank, and
 * then calls abort(). The abort ends all ranks that run as threads of the process. Other processes detect the end of
 * this process, and then end, too. */
#pragma once

#include <setjmp.h>

#define CHECK(cond, ...) ((cond) ? (void)0 : fault(__FILE__, __LINE__, #cond, __VA_ARGS__))

_Noreturn void fault(const char *file, int line, const char *cond, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* A thread's current work, for fault messages. FaultScope is the program's only thread-local state. The scope is needed
 * because ranks can be threads, and the message about a fault in a kernel must name the rank. */
typedef struct FaultScope {
    char where[120];    /* such as "rank 3 (tp 1 dp 1)" */
    char op[32];        /* the name of the current op, or empty between ops */
    jmp_buf *catch_jmp; /* for tests: where to jump instead of calling abort() */
    char message[512];  /* the fault message, set before the jump */
} FaultScope;

/* Installs the calling thread's scope, or removes it if the argument is NULL. Returns the previous scope. */
FaultScope *fault_scope(FaultScope *scope);
/* Returns the calling thread's scope, or NULL if none is installed. */
FaultScope *fault_scope_now(void);

/* Installs a handler for unreadable pages of mapped files. If a file was truncated or its disk failed, the process ends
 * with exit status ERR_INFRA and a message that names the file. */
void fault_on_lost_pages(void);
