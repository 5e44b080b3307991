#include "base/fault.h"

#include <execinfo.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static _Thread_local FaultScope *thread_scope;

FaultScope *fault_scope(FaultScope *scope) {
    FaultScope *old = thread_scope;
    thread_scope = scope;
    return old;
}

FaultScope *fault_scope_now(void) { return thread_scope; }

void fault(const char *file, int line, const char *cond, const char *fmt, ...) {
    char text[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);

    char message[sizeof thread_scope->message];
    const char *where = thread_scope && thread_scope->where[0] ? thread_scope->where : "no rank";
    const char *op = thread_scope && thread_scope->op[0] ? thread_scope->op : "none";
    snprintf(message, sizeof message, "%s:%d: [%s, op %s] %s (failed: %s)", file, line, where, op, text,
             cond);
    if (thread_scope && thread_scope->catch_jmp) {
        snprintf(thread_scope->message, sizeof thread_scope->message, "%s", message);
        longjmp(*thread_scope->catch_jmp, 1);
    }
    fprintf(stderr, "FAULT %s\n", message);
    void *frames[32];
    backtrace_symbols_fd(frames, backtrace(frames, 32), STDERR_FILENO);
    abort();
}
