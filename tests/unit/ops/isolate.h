/* Runs tests in a separate process. If a test ends the process or breaks its GPU (an illegal address ends all of a
 * process's GPU work), a new process runs the remaining tests. A broken test therefore does not affect later
 * tests. Every test runs once; a test that never begins counts as failed. */
#pragma once

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fault.h"
#include "unit/cmocka_all.h"

enum { ISOLATE_TESTS = 8192, ISOLATE_SKIPPED = 77, ISOLATE_AGAIN };

/* How a test ended. TEST_LEFT_OUT means that the test skipped itself, because it does not apply to this
 * machine. */
typedef enum TestEnd { TEST_NOT_BEGUN, TEST_STARTED, TEST_PASSED, TEST_LEFT_OUT, TEST_ENDS } TestEnd;

/* State in memory that the processes share. */
typedef struct Isolated {
    int begun; /* the test that runs or ran last, or -1 if there is none */
    bool done; /* there are no more tests */
    unsigned char end[ISOLATE_TESTS];
} Isolated;

static inline void *shared_memory(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED, "no memory of %zu bytes", bytes);
    return p;
}

/* Runs fn(arg). Returns false if it ended in a fault; the message is in scope->message. */
static inline bool without_fault(void (*fn)(void *), void *arg, FaultScope *scope) {
    jmp_buf jump;
    *scope = (FaultScope){.where = "test", .catch_jmp = &jump};
    FaultScope *old = fault_scope(scope);
    const bool whole = !setjmp(jump);
    if (whole) fn(arg);
    fault_scope(old);
    return whole;
}

/* Prints the names of failed and skipped tests. Returns the exit status of the program. */
static inline int isolated_report(const Isolated *s, const struct CMUnitTest *tests, int n, FILE *out) {
    static const char *const SAID[TEST_ENDS] = {
        [TEST_NOT_BEGUN] = "FAILED, never begun:", [TEST_STARTED] = "FAILED", [TEST_LEFT_OUT] = "left out:"};
    int count[TEST_ENDS] = {0};
    for (int i = 0; i < n; i++) {
        count[s->end[i]]++;
        if (SAID[s->end[i]]) fprintf(out, "%s %s\n", SAID[s->end[i]], tests[i].name);
    }
    const int ran = count[TEST_STARTED] + count[TEST_PASSED];
    const int failed = count[TEST_STARTED] + count[TEST_NOT_BEGUN];
    fprintf(out, "%d of %d tests ran, %d failed, %d left out\n", ran, n, failed, count[TEST_LEFT_OUT]);
    return failed > 0 || ran == 0;
}

/* Runs tests[0, n) in child processes: child(first) runs those from `first` on and returns 0 when all are
 * done, or ISOLATE_SKIPPED. */
static inline int isolate(Isolated *s, const struct CMUnitTest *tests, int n, int (*child)(int first)) {
    for (int first = 0, status; first < n && !s->done; first = s->begun + 1) {
        s->begun = -1;
        fflush(NULL);
        const pid_t pid = fork();
        if (pid == 0) {
            status = child(first);
            s->done = status == 0;
            fflush(NULL);
            _exit(status);
        }
        waitpid(pid, &status, 0);
        const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        if (code == ISOLATE_SKIPPED && first == 0) return ISOLATE_SKIPPED;
        if (!s->done && code != ISOLATE_AGAIN)
            printf("the process ended by %s %d\n", code < 0 ? "signal" : "status",
                   code < 0 ? WTERMSIG(status) : code);
        CHECK(
            s->done || s->begun >= first,
            "the tests' process ends before the first test"); /* further processes would make no progress either */
    }
    return isolated_report(s, tests, n, stdout);
}
