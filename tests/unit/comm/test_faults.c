/* Tests worlds of thread ranks that must end with a fault, each in a separate process. */
#include "unit/cmocka_all.h"

#include "base/err.h"
#include "unit/comm/ending.h"

/* A world that ends with a fault does not join its threads. The thread sanitizer calls this function by name. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void) { return "report_thread_leaks=0"; }

TEST(each_fault_is_reported_in_time) {
    const double slack = 3; /* allows for a loaded machine and a sanitizer */
    for (size_t i = 0; i < sizeof FAULTS / sizeof *FAULTS; i++) {
        const Fault *f = &FAULTS[i];
        static Ending e;
        const CommOptions soon = FAULT_OPTIONS, never = {.deadline_s = 1000};
        end_of(f->program, NULL, FAULT_RANKS, f->at_once ? &never : &soon, &e);
        assert_says(&e, f->name, f->says);
        assert_true(WIFEXITED(e.status));
        if (WEXITSTATUS(e.status) != ERR_INFRA)
            fail_msg("%s: exit status %d\n%s", f->name, WEXITSTATUS(e.status), e.text);
        assert_int_equal(1, strstr(strstr(e.text, "COMM FAULT") + 1, "COMM FAULT") == NULL);
        assert_true(e.seconds < (f->at_once ? 0 : soon.deadline_s) + slack);
        assert_true(f->at_once || e.seconds >= soon.deadline_s);
    }
}

/* arg points to the delay in seconds. */
static void is_delayed(void *arg, Comm *c) {
    if (comm_rank(c) == 1) comm_sabotage(c, (CommSabotage){.nth = 0, .delay_s = *(double *)arg});
    small_run(c, small_call(c, COMM_ALL_REDUCE, "delayed"));
}

TEST(a_delay_within_the_deadline_is_no_fault) {
    static Ending e;
    double delay = 0.2;
    end_of(is_delayed, &delay, FAULT_RANKS, &(CommOptions){.deadline_s = 100}, &e);
    assert_string_equal(e.text, "");
    assert_int_equal(e.status, 0);
    assert_in_range((int)(e.seconds * 10), 2, 50);
}

TEST(a_slow_rank_is_named_once) {
    static Ending e;
    double delay =
        1; /* twice the time after which the warning is due, because it may be late on a loaded machine */
    end_of(is_delayed, &delay, FAULT_RANKS, &(CommOptions){.deadline_s = 5}, &e);
    assert_string_equal(e.text, "COMM WARNING rank 0 has waited 0.5 s of at most 5 s in all_reduce sum of 3 "
                                "F32 at 'delayed', operation 0 of ranks 0 1 2 3\n  for ranks: 1\n");
    assert_int_equal(e.status, 0);
}

/* The first operation may take longer than later ones. */
static void has_a_new_deadline(void *arg, Comm *c) {
    small_run(c, small_call(c, COMM_ALL_REDUCE, "first"));
    comm_set_deadline(c, 0.5);
    if (comm_rank(c) == 1) comm_sabotage(c, (CommSabotage){.nth = 1, .delay_s = *(double *)arg});
    small_run(c, small_call(c, COMM_ALL_REDUCE, "second"));
}

TEST(a_new_deadline_is_that_of_later_operations) {
    static Ending e;
    double delay = 30;
    end_of(has_a_new_deadline, &delay, FAULT_RANKS, &(CommOptions){.deadline_s = 1000}, &e);
    assert_non_null(strstr(e.text, "has waited 0.5 s for ranks that are late"));
    assert_true(WEXITSTATUS(e.status) == ERR_INFRA && e.seconds < 10);
}

/* ---- bugs of the caller end the process, and the message names the rank ---- */

static void leaves_work(void *arg, Comm *c) {
    (void)arg;
    CommCall call = small_call(c, comm_rank(c) ? COMM_SEND : COMM_RECV, "left");
    call.peer = 1 - comm_rank(c);
    if (comm_rank(c))
        comm_start(c, &call);
    else
        small_run(c, call);
}

static void waits_twice(void *arg, Comm *c) {
    (void)arg;
    CommCall call = small_call(c, COMM_BARRIER, "twice");
    CommWork *w = comm_start(c, &call);
    comm_wait(c, w);
    comm_wait(c, w);
}

static void names_itself(void *arg, Comm *c) {
    (void)arg;
    CommCall call = small_call(c, COMM_SEND, "to itself");
    call.peer = comm_rank(c);
    small_run(c, call);
}

static void is_no_member(void *arg, Comm *c) {
    (void)arg;
    CommCall call = small_call(c, COMM_BARRIER, "no member");
    call.group.first = 1;
    small_run(c, call);
}

TEST(bugs_end_the_process_with_the_ranks_name) {
    const struct {
        CommMain *program;
        const char *says[SAYS];
    } bugs[] = {
        {leaves_work, {"[rank 1", "returned without waiting for 1 operations"}},
        {waits_twice, {"[rank ", "'twice' is waited for twice"}},
        {names_itself, {"[rank ", "at 'to itself': member"}},
        {is_no_member, {"[rank ", "at 'no member': rank"}},
    };
    for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++) {
        static Ending e;
        end_of(bugs[i].program, NULL, 2, NULL, &e);
        assert_says(&e, "bug", bugs[i].says);
        assert_true(WIFSIGNALED(e.status) && WTERMSIG(e.status) == SIGABRT);
    }
}
