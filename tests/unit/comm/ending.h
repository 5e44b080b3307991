/* Runs a world of thread ranks in a child process, and records how it ended. */
#pragma once

#include <sys/wait.h>

#include "base/clock.h"
#include "unit/cmocka_all.h"
#include "unit/comm/faults.h"

typedef struct Ending {
    int status;
    double seconds;
    char text[1 << 16]; /* the child's stderr */
} Ending;

static inline void end_of(CommMain *program, void *arg, int ranks, const CommOptions *options, Ending *e) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    const int64_t start = clock_ns();
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]), close(ends[1]);
        comm_threads(ranks, options, program, arg);
        _exit(0);
    }
    close(ends[1]);
    size_t n = 0;
    ssize_t got = 1;
    while (got > 0 && n < sizeof e->text - 1) {
        got = read(ends[0], e->text + n, sizeof e->text - 1 - n);
        if (got > 0) n += (size_t)got;
    }
    e->text[n] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(child, &e->status, 0), child);
    e->seconds = (double)(clock_ns() - start) * 1e-9;
}

static inline void assert_says(const Ending *e, const char *name, const char *const *says) {
    for (int i = 0; i < SAYS && says[i]; i++)
        if (!strstr(e->text, says[i])) fail_msg("%s: '%s' is not in the report:\n%s", name, says[i], e->text);
}
