/* Programs that ranks run as processes. The MPI and TCP tests share them. */
#pragma once

#include "unit/cmocka_all.h"
#include "unit/comm/faults.h"

typedef struct Program {
    const char *name;
    CommMain *run;
} Program;

static void seven_sizes(void *arg, Comm *c) {
    (void)arg;
    int sizes = 7;
    run_all_kinds(&sizes, c);
}

static void mesh_of_4(void *arg, Comm *c) {
    (void)arg;
    run_interleaved(&(Layout){.size = {2, 1, 0, 2, 1, 2, 0}, .rounds = 20}, c);
}

/* Rank 2 sends itself `signal` after the first operation, while the other ranks wait in the next one. */
static void signal_2(Comm *c, int signal) {
    barrier(c, "before");
    if (comm_rank(c) == 2) usleep(200 * 1000), raise(signal);
    for (int i = 0; i < 10; i++) small_run(c, small_call(c, COMM_ALL_REDUCE, "after"));
}

static void stop_2(void *arg, Comm *c) { (void)arg, signal_2(c, SIGSTOP); }
static void kill_2(void *arg, Comm *c) { (void)arg, signal_2(c, SIGKILL); }

/* Rank 2 stops after its last operation. */
static void stop_at_the_end(void *arg, Comm *c) {
    (void)arg;
    barrier(c, "last");
    if (comm_rank(c) == 2) raise(SIGSTOP);
}

static const Program PROGRAMS[] = {
    {"seven_sizes", seven_sizes},
    {"order", run_order},
    {"messages", run_messages},
    {"mesh_of_4", mesh_of_4},
    {"stop_2", stop_2},
    {"kill_2", kill_2},
    {"stop_at_the_end", stop_at_the_end},
};
enum { PROGRAMS_TO_RUN = 4 }; /* the first programs, which must end without an error */

/* The report does not depend on the deadline, because the watchdog thread of rank 1 detects the silent rank
 * earlier. */
static const char *const SAYS_STOPPED[SAYS] = {
    "COMM FAULT rank 2 has not been heard from for 6.", "all_reduce sum of 3 F32 at 'after', operation 1",
    "ranks that did not: 2\n", "rank 2 does not answer; its last operation: barrier at 'before'"};

static inline void assert_words(const char *text, const char *name, const char *const *says) {
    for (int i = 0; i < SAYS && says[i]; i++)
        if (!strstr(text, says[i])) fail_msg("%s: '%s' is not in the report:\n%s", name, says[i], text);
}

/* Several ranks may reach their deadline, but only one of them may report. */
static inline void assert_one_report(const char *text, const char *name) {
    const char *first = strstr(text, "COMM FAULT");
    if (!first || strstr(first + 1, "COMM FAULT")) fail_msg("%s: not one report:\n%s", name, text);
}
