/* Tests worlds of MPI processes. Without arguments, this is a CMocka program that runs mpirun on itself. With
 * the name of a program as its argument, it is one rank of that program. */
#include "unit/cmocka_all.h"

#include <sys/wait.h>

#include "base/clock.h"
#include "base/err.h"
#include "unit/comm/processes.h"

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
    for (size_t p = 0; p < PROGRAMS_TO_RUN; p++)
        for (size_t r = PROGRAMS[p].run == mesh_of_4 ? 3 : 0; r < 4; r++) {
            mpirun(state, RANKS[r], PROGRAMS[p].name, 100, &e);
            if (e.status) fail_msg("%s on %d ranks:\n%s", PROGRAMS[p].name, RANKS[r], e.text);
        }
}

static const double SLACK_S =
    7; /* seconds that a loaded machine needs to start and end the processes of a world */

static void assert_ends(const Ending *e, const char *name, const char *const *says, double deadline_s) {
    assert_words(e->text, name, says);
    assert_true(WIFEXITED(e->status));
    if (e->seconds >= deadline_s + SLACK_S) fail_msg("%s took %.1f s", name, e->seconds);
}

/* The status is that of the rank that reports, or 128 + signal if a signal of mpirun ended the rank first. */
static void assert_failed(const Ending *e, const char *name) {
    const int status = WEXITSTATUS(e->status);
    if (status != ERR_INFRA && status <= 128) fail_msg("%s: exit status %d\n%s", name, status, e->text);
}

/* Runs only a few programs of each kind, because the TCP test runs all of them with the same code over a
 * different transport. */
static void each_fault_is_reported_in_time(void **state) {
    enum { EACH = 4 };
    static Ending e;
    for (size_t i = 1; i < sizeof FAULTS / sizeof *FAULTS; i += EACH) {
        const Fault *f = &FAULTS[i];
        mpirun(state, FAULT_RANKS, f->name, f->at_once ? 1000 : FAULT_OPTIONS.deadline_s, &e);
        assert_ends(&e, f->name, f->says, f->at_once ? 0 : FAULT_OPTIONS.deadline_s);
        assert_failed(&e, f->name);
        assert_one_report(e.text, f->name);
        if (f->program == chain) /* the report distinguishes waiting ranks from the stuck rank */
            assert_non_null(strstr(e.text, "answers; its last operation: barrier at 'chain'"));
    }
}

static void a_stopped_rank_is_named(void **state) {
    static Ending e;
    mpirun(state, 4, "stop_2", 1000, &e);
    assert_ends(&e, "stop_2", SAYS_STOPPED, 10 - SLACK_S);
    assert_one_report(e.text, "stop_2");
    assert_failed(&e, "stop_2");
    mpirun(state, 4, "stop_at_the_end", 1, &e);
    assert_ends(&e, "stop_at_the_end", (const char *const[SAYS]){"rank 2 has not returned after 1 s"}, 1);
    assert_failed(&e, "stop_at_the_end");
}

/* The launcher may detect the end before the other ranks do. Both reports name the rank. */
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
    const bool built = comm_mpi_built();
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
