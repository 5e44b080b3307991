/* Worlds of MPI processes: without arguments, a CMocka program that runs mpirun on itself; with the name of a
 * program, one of its ranks. */
#include "unit/cmocka_all.h"

#include <sys/wait.h>

#include "base/clock.h"
#include "base/err.h"
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

/* The ranks stop or kill rank 2 after the first operation, and go on. */
static void signal_2(Comm *c, int signal) {
    barrier(c, "before");
    if (comm_rank(c) == 2) raise(signal);
    for (int i = 0; i < 10; i++) small_run(c, small_call(c, COMM_ALL_REDUCE, "after"));
}

static void stop_2(void *arg, Comm *c) { (void)arg, signal_2(c, SIGSTOP); }
static void kill_2(void *arg, Comm *c) { (void)arg, signal_2(c, SIGKILL); }

/* Rank 2 stops when it has nothing more to do. */
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

static int rank_main(const char *name, const char *deadline) {
    CommMain *run = NULL;
    for (size_t i = 0; i < sizeof PROGRAMS / sizeof *PROGRAMS; i++)
        if (!strcmp(name, PROGRAMS[i].name)) run = PROGRAMS[i].run;
    for (size_t i = 0; i < sizeof FAULTS / sizeof *FAULTS; i++)
        if (!strcmp(name, FAULTS[i].name)) run = FAULTS[i].program;
    Comm *c = comm_mpi(&(CommOptions){.deadline_s = atof(deadline)});
    run(NULL, c);
    comm_free(c);
    return 0;
}

typedef struct Ending {
    int status;
    double seconds;
    char text[1 << 18];
} Ending;

static void mpirun(void **state, int ranks, const char *program, double deadline_s, Ending *e) {
    char command[1000];
    snprintf(command, sizeof command,
             "mpirun --allow-run-as-root --oversubscribe -np %d %s %s %g 2>&1 </dev/null", ranks,
             (const char *)*state, program, deadline_s);
    const int64_t start = clock_ns();
    FILE *out = popen(command, "r");
    assert_non_null(out);
    e->text[fread(e->text, 1, sizeof e->text - 1, out)] = 0;
    e->status = pclose(out);
    e->seconds = (double)(clock_ns() - start) * 1e-9;
}

static void programs_run(void **state) {
    static const int RANKS[] = {1, 2, 3, 4};
    static Ending e;
    for (size_t p = 0; p < 4; p++)
        for (size_t r = PROGRAMS[p].run == mesh_of_4 ? 3 : 0; r < 4; r++) {
            mpirun(state, RANKS[r], PROGRAMS[p].name, 100, &e);
            if (e.status) fail_msg("%s on %d ranks:\n%s", PROGRAMS[p].name, RANKS[r], e.text);
        }
}

static const double SLACK_S = 7; /* to start and end the processes of a world on a loaded machine */

static void assert_ends(const Ending *e, const char *name, const char *const *says, double deadline_s) {
    for (int i = 0; i < SAYS && says[i]; i++)
        if (!strstr(e->text, says[i])) fail_msg("%s: '%s' is not in the report:\n%s", name, says[i], e->text);
    assert_true(WIFEXITED(e->status));
    if (e->seconds >= deadline_s + SLACK_S) fail_msg("%s took %.1f s", name, e->seconds);
}

/* Several ranks are at their deadline; one reports. */
static void assert_one_report(const Ending *e) {
    assert_null(strstr(strstr(e->text, "COMM FAULT") + 1, "COMM FAULT"));
}

/* The reporter's, or what mpirun makes of a rank that one of its signals ended first: 128 + signal. */
static void assert_failed(const Ending *e, const char *name) {
    const int status = WEXITSTATUS(e->status);
    if (status != ERR_INFRA && status <= 128) fail_msg("%s: exit status %d\n%s", name, status, e->text);
}

static void each_fault_is_reported_in_time(void **state) {
    static Ending e;
    for (size_t i = 0; i < sizeof FAULTS / sizeof *FAULTS; i++) {
        const Fault *f = &FAULTS[i];
        mpirun(state, FAULT_RANKS, f->name, f->at_once ? 1000 : FAULT_OPTIONS.deadline_s, &e);
        assert_ends(&e, f->name, f->says, f->at_once ? 0 : FAULT_OPTIONS.deadline_s);
        assert_failed(&e, f->name);
        assert_one_report(&e);
        if (f->program == chain) /* who waits is told from who is stuck */
            assert_non_null(strstr(e.text, "answers; its last operation: barrier at 'chain'"));
    }
}

static void a_stopped_rank_is_named(void **state) {
    static const char *const SAYS_STOPPED[SAYS] = {
        "all_reduce sum of 3 F32 at 'after', operation 1", "ranks that did not: 2\n",
        "rank 2 does not answer; its last operation: barrier at 'before'"};
    static Ending e;
    mpirun(state, 4, "stop_2", 3, &e);
    assert_ends(&e, "stop_2", SAYS_STOPPED, 3);
    assert_one_report(&e);
    assert_failed(&e, "stop_2");
    mpirun(state, 4, "stop_at_the_end", 1, &e);
    assert_ends(&e, "stop_at_the_end", (const char *const[SAYS]){"rank 2 has not for 1 s"}, 1);
    assert_failed(&e, "stop_at_the_end");
}

/* The launcher may see it first: either names the rank. */
static void a_killed_rank_ends_the_world(void **state) {
    static Ending e;
    mpirun(state, 4, "kill_2", 3, &e);
    const bool ours = strstr(e.text, "ranks that did not: 2\n"),
               launchers = strstr(e.text, "rank 2 with PID");
    if (!ours && !launchers) fail_msg("nobody names rank 2:\n%s", e.text);
    assert_int_not_equal(e.status, 0);
    assert_true(e.seconds < 3 + SLACK_S);
}

int main(int argc, char **argv) {
    if (argc == 3) return rank_main(argv[1], argv[2]);
    setenv("PMIX_RANK", "0", 0); /* as a launcher does: what is left to say is whether MPI is built in */
    const bool built = comm_mpi_present();
    unsetenv("PMIX_RANK");
    if (!built || system("command -v mpirun >/dev/null")) {
        puts(built ? "skipped: there is no mpirun on this machine" : "skipped: this build has no MPI");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(programs_run, argv[0]),
        cmocka_unit_test_prestate(each_fault_is_reported_in_time, argv[0]),
        cmocka_unit_test_prestate(a_stopped_rank_is_named, argv[0]),
        cmocka_unit_test_prestate(a_killed_rank_ends_the_world, argv[0]),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
