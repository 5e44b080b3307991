#include "base/fault.h"

#include <execinfo.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"

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

/* Sets `path` to the path of the file mapped at an address. */
static void path_at(uintptr_t address, char *path, size_t size) {
    char line[600];
    FILE *maps = fopen("/proc/self/maps", "r");
    snprintf(path, size, "a mapped file");
    while (maps && fgets(line, sizeof line, maps)) {
        uintptr_t begin, end;
        int at = 0;
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %*s %*s %*s %*s %n", &begin, &end, &at) == 2 && at &&
            begin <= address && address < end)
            snprintf(path, size, "'%.*s'", (int)strcspn(line + at, "\n"), line + at);
    }
}

/* Handles SIGBUS. The signal interrupts a load from a mapped file, not code that holds a standard-library lock, so the
 * handler can safely call the library. */
static void lost_page(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    char path[600];
    path_at((uintptr_t)info->si_addr, path, sizeof path);
    fprintf(stderr, "isotron: %s has lost bytes that are in use: it was truncated, or its disk failed\n",
            path);
    _exit(ERR_INFRA);
}

void fault_on_lost_pages(void) {
    sigaction(SIGBUS, &(struct sigaction){.sa_sigaction = lost_page, .sa_flags = SA_SIGINFO}, NULL);
}
