/* Tests worlds of processes on this host that are connected by TCP. */
#include "unit/comm/tcp_world.h"

#include <errno.h>
#include <poll.h>

#include "comm/tcp.h"
#include "comm/transport.h"

/* Many processes end during this test. The thread sanitizer calls this function by name. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void) { return "atexit_sleep_ms=0"; }

/* ---- programs ---- */

/* The senders send more data than a connection can buffer before the receiver expects it. Part of a message has thus
 * arrived when the receiver starts to expect messages. */
static void many_messages(void *arg, Comm *c) {
    enum { MESSAGES = 300, ELEMENTS = 16000 };
    (void)arg;
    const int rank = comm_rank(c);
    Trial *t = mem_zero(MESSAGES, sizeof *t);
    if (rank == 1) usleep(100 * 1000);
    for (int i = 0; i < MESSAGES; i++) {
        t[i].call = (CommCall){.kind = rank ? COMM_RECV : COMM_SEND,
                               .dtype = F32,
                               .group = world_group(c),
                               .site = "many",
                               .n = ELEMENTS,
                               .peer = 1 - rank};
        trial_start(c, &t[i]);
    }
    if (rank == 0) usleep(300 * 1000);
    for (int i = 0; i < MESSAGES; i++) trial_finish(c, &t[i]);
    free(t);
}

TEST(programs_run) {
    static World w;
    run_world(&w, 2, many_messages, 10);
    assert_statuses(&w, "many_messages", 0, -1, 0);
    for (size_t p = 0; p < PROGRAMS_TO_RUN; p++)
        for (int ranks = PROGRAMS[p].run == mesh_of_4 ? 4 : 2; ranks <= MOST; ranks++) {
            run_world(&w, ranks, PROGRAMS[p].run, 100);
            assert_statuses(&w, PROGRAMS[p].name, 0, -1, 0);
            assert_string_equal(w.text, "");
        }
}

static void judge_fault(const Fault *f, World *w) {
    end_world(w);
    assert_words(w->text, f->name, f->says);
    assert_one_report(w->text, f->name);
    if (f->program == chain) /* the report distinguishes waiting ranks from the stuck rank */
        assert_non_null(strstr(w->text, "answers; its last operation: barrier at 'chain'"));
    assert_statuses(w, f->name, ERR_INFRA, -1, 0);
    assert_in_time(w, f->name, (f->at_once ? 0 : FAULT_OPTIONS.deadline_s) + SLACK_S);
}

/* Worlds that wait for a deadline run concurrently. */
TEST(each_fault_is_reported_in_time) {
    enum { N = sizeof FAULTS / sizeof *FAULTS };
    static World w[N];
    for (int i = 0; i < N; i++)
        if (!FAULTS[i].at_once)
            begin_world(&w[i], FAULT_RANKS, run_task, &(Task){FAULTS[i].program, FAULT_OPTIONS.deadline_s});
    for (int i = 0; i < N; i++)
        if (!FAULTS[i].at_once) judge_fault(&FAULTS[i], &w[i]);
    for (int i = 0; i < N; i++) {
        if (!FAULTS[i].at_once) continue;
        begin_world(&w[i], FAULT_RANKS, run_task, &(Task){FAULTS[i].program, 1000});
        judge_fault(&FAULTS[i], &w[i]);
    }
}

/* ---- processes that end or do not run ---- */

static void exit_2(void *arg, Comm *c) {
    (void)arg;
    barrier(c, "before");
    if (comm_rank(c) == 2) _exit(ERR_USER);
    barrier(c, "after");
}

/* The other ranks are not in an operation, so only a closed connection can tell them that rank 0 has
 * ended. */
static void kill_0_meanwhile(void *arg, Comm *c) {
    (void)arg;
    barrier(c, "before");
    if (comm_rank(c) == 0) raise(SIGKILL);
    sleep(20);
}

TEST(a_process_that_ends_ends_the_world) {
    static World w;
    run_world(&w, 4, kill_2, 1000);
    assert_words(w.text, "kill_2",
                 (const char *const[SAYS]){"COMM FAULT rank 2 has ended: its connection is closed",
                                           "all_reduce sum of 3 F32 at 'after', operation 1 of ranks 0 1 2 3",
                                           "ranks that did not: 2\n", "rank 2 has ended"});
    assert_one_report(w.text, "kill_2");
    assert_statuses(&w, "kill_2", ERR_INFRA, 2, -SIGKILL);
    assert_in_time(&w, "kill_2", SLACK_S);
    run_world(&w, 3, exit_2, 1000);
    assert_words(w.text, "exit_2", (const char *const[SAYS]){"rank 2 has ended", "barrier at 'after'"});
    assert_statuses(&w, "exit_2", ERR_INFRA, 2, ERR_USER);
    assert_in_time(&w, "exit_2", SLACK_S);
    run_world(&w, 4, kill_0_meanwhile, 1000);
    assert_words(w.text, "kill_0", (const char *const[SAYS]){"rank 0 has ended", "barrier at 'before'"});
    assert_one_report(w.text, "kill_0");
    assert_statuses(&w, "kill_0", ERR_INFRA, 0, -SIGKILL);
    assert_in_time(&w, "kill_0", SLACK_S);
}

/* All ranks compute for longer than a process may be silent. Their watchdog threads send heartbeats. */
static void compute_long(void *arg, Comm *c) {
    (void)arg;
    barrier(c, "before");
    sleep(8);
    barrier(c, "after");
}

/* A debugger, or a batch system, may stop all processes and continue them later. */
static void wait_long(void *arg, Comm *c) {
    (void)arg;
    barrier(c, "before");
    sleep(comm_rank(c) == 2 ? 2 : 0); /* the other ranks wait for this rank */
    barrier(c, "after");
}

/* Members do not announce the operations of a device. Rank 2 launches a graph, but does not start the
 * operation that rank 1 reports. */
static void fail_on_the_device(void *arg, Comm *c) {
    CommCall call = small_call(c, COMM_ALL_REDUCE, "");
    CommKey key = comm_key(&call, true);
    CommWork w = {.facts = {.kind = COMM_ALL_REDUCE, .dtype = F32, .n = 3, .site = "planted"}};
    (void)arg;
    barrier(c, "before");
    if (comm_rank(c) == 2) key.device = 2, w.facts.kind = COMM_GRAPH;
    w.channel = comm_channel(c, &key);
    comm_record_start(&c->recorder, &w);
    if (comm_rank(c) == 1) usleep(300 * 1000), c->host->end(c, &key, 0, &w.facts, "NCCL reports");
    sleep(20);
}

TEST(who_started_an_operation_of_the_device_is_told) {
    static World w;
    run_world(&w, 4, fail_on_the_device, 1000);
    assert_words(w.text, "on the device",
                 (const char *const[SAYS]){"COMM FAULT NCCL reports\n  all_reduce sum of 3 F32 at 'planted'",
                                           "ranks that started it: 0 1 3\n", "ranks that did not: 2\n",
                                           "rank 2 answers; its last operation: graph at 'planted'"});
    assert_statuses(&w, "on the device", ERR_INFRA, -1, 0);
    assert_in_time(&w, "on the device", SLACK_S);
}

/* These worlds take seconds, so they run concurrently with the other tests. */
static World stopped, at_end, all, computing, meeting;

/* Rank 1 connects to rank 0, and to the other ranks only much later. */
static void meet_for_long(const World *w, int rank, const void *arg) {
    const CommLaunch l = launch_of(w, rank);
    int socket[MOST];
    if (rank != 1) run_task(w, rank, arg);
    const Err e = tcp_meet(&l, &(CommOptions){0}, socket);
    sleep(8);
    _exit(e.code);
}

static int begin_to_stop(void **state) {
    (void)state;
    begin_world(&stopped, 4, run_task, &(Task){stop_2, 1000});
    begin_world(&at_end, 4, run_task, &(Task){stop_at_the_end, 1000});
    begin_world(&computing, 2, run_task, &(Task){compute_long, 1000});
    begin_world(&all, 3, run_task, &(Task){wait_long, 1000});
    begin_world(&meeting, 2, meet_for_long, &(Task){wait_long, 1000});
    usleep(1000 * 1000);
    for (int r = 0; r < all.ranks; r++) kill(all.process[r], SIGSTOP);
    return 0;
}

TEST(a_stopped_process_is_named_within_10_s) {
    end_world(&stopped), end_world(&at_end);
    assert_words(stopped.text, "stop_2", SAYS_STOPPED);
    assert_one_report(stopped.text, "stop_2");
    assert_statuses(&stopped, "stop_2", ERR_INFRA, 2, -SIGKILL);
    assert_true(stopped.reported > 6 && stopped.reported < 10);
    assert_words(at_end.text, "stop_at_the_end",
                 (const char *const[SAYS]){"rank 2 has not been heard", "rank 2 does not answer"});
    assert_one_report(at_end.text, "stop_at_the_end");
    assert_statuses(&at_end, "stop_at_the_end", ERR_INFRA, 2, -SIGKILL);
    assert_true(at_end.reported > 6 && at_end.reported < 10);
}

TEST(all_processes_may_be_stopped_for_a_while) {
    while (clock_ns() - all.begin_ns < INT64_C(8500000000)) usleep(10000);
    look(&all);
    for (int r = 0; r < all.ranks; r++) {
        assert_true(all.stopped[r]);
        kill(all.process[r], SIGCONT);
        all.stopped[r] = false; /* the process may already have ended, so do not wait for WCONTINUED */
    }
    end_world(&all);
    assert_statuses(&all, "all are stopped", 0, -1, 0);
}

TEST(processes_may_compute_for_long) {
    end_world(&computing);
    assert_statuses(&computing, "compute_long", 0, -1, 0);
    assert_string_equal(computing.text, "");
    assert_true(computing.seconds > 8);
}

TEST(processes_may_meet_for_long) {
    end_world(&meeting);
    assert_words(meeting.text, "meet_for_long", (const char *const[SAYS]){"COMM FAULT rank 1 has ended"});
    assert_statuses(&meeting, "meet_for_long", ERR_INFRA, 1, 0);
}

static void slow_1(void *arg, Comm *c) {
    (void)arg;
    if (comm_rank(c) == 1) comm_sabotage(c, (CommSabotage){.nth = 0, .delay_s = 0.7});
    small_run(c, small_call(c, COMM_ALL_REDUCE, "slow"));
}

TEST(a_slow_process_is_named) {
    static World w;
    run_world(&w, 3, slow_1, 5);
    assert_statuses(&w, "slow_1", 0, -1, 0);
    assert_string_equal(w.text, "COMM WARNING rank 0 has waited 0.5 s of at most 5 s in all_reduce sum of 3 "
                                "F32 at 'slow', operation 0 of ranks 0 1 2\n  for ranks: 1\n");
}

/* Rank 2 starts the operation first, and pauses before it has contributed to the sum. */
static void slow_2_between(void *arg, Comm *c) {
    CommCall call = small_call(c, COMM_ALL_REDUCE, "between");
    float out[64];
    (void)arg;
    barrier(c, "before");
    if (comm_rank(c) != 2) usleep(200 * 1000);
    call.out = out;
    CommWork *w = comm_start(c, &call);
    if (comm_rank(c) == 2) usleep(1200 * 1000);
    comm_wait(c, w);
}

TEST(a_process_that_stops_after_its_start_is_named) {
    static World w;
    run_world(&w, 4, slow_2_between, 5);
    assert_statuses(&w, "slow_2_between", 0, -1, 0);
    assert_string_equal(w.text, "COMM WARNING rank 0 has waited 0.5 s of at most 5 s in all_reduce sum of 3 "
                                "F32 at 'between', operation 1 of ranks 0 1 2 3\n  for ranks: 2\n");
}

/* All members join operation 0 of a device, and rank 2 does not join operation 1. Rank 3 has started so many
 * operations that its records no longer contain operation 1. */
static void late_on_the_device(void *arg, Comm *c) {
    CommCall call = small_call(c, COMM_ALL_REDUCE, "");
    const CommKey key = comm_key(&call, true);
    CommWork w = {.facts = {.kind = COMM_ALL_REDUCE, .dtype = F32, .n = 3, .site = "slow"}};
    const int rank = comm_rank(c), started[MOST] = {2, 2, 1, 2 + COMM_RECORDS};
    (void)arg;
    w.channel = comm_channel(c, &key);
    for (; w.seq < started[rank]; w.seq++) comm_record_start(&c->recorder, &w);
    barrier(c, "before");
    if (rank != 2) c->host->warn(c, &key, 0, &w.facts), c->host->warn(c, &key, 1, &w.facts);
    sleep(2);
}

TEST(a_process_that_is_slow_on_the_device_is_named) {
    static World w;
    run_world(&w, 4, late_on_the_device, 50);
    assert_statuses(&w, "late_on_the_device", 0, -1, 0);
    assert_string_equal(w.text, "COMM WARNING rank 0 has waited 5 s of at most 50 s in all_reduce sum of 3 "
                                "F32 at 'slow', operation 1 of ranks 0 1 2 3\n  for ranks: 2\n");
}

/* ---- meetings ---- */

static int connect_to(int port) {
    struct sockaddr_in a = at_port(port);
    const int s = socket(AF_INET, SOCK_STREAM, 0);
    while (connect(s, (void *)&a, sizeof a)) usleep(1000);
    return s;
}

/* Before the world connects, process 0 gets connections from strangers: more silent ones than it keeps, and
 * some that send arbitrary bytes. */
static void strangers_then_task(const World *w, int rank, const void *arg) {
    enum { SILENT = 100, GARBAGE = 4096 };
    if (rank == 1) {
        unsigned char garbage[GARBAGE];
        int s[SILENT];
        for (int i = 0; i < SILENT; i++) s[i] = connect_to(w->port);
        for (int i = 0; i < GARBAGE; i++) garbage[i] = (unsigned char)philox_u32(1, 2, (uint64_t)i);
        for (int i = 0; i < 20; i++) {
            const int one = connect_to(w->port);
            if (i == 19) memcpy(garbage, "isotron", 8); /* a valid beginning of a handshake */
            send(one, garbage, i == 0 ? 1 : GARBAGE, MSG_NOSIGNAL);
            if (i % 2) close(one);
        }
        for (int i = 0; i < SILENT; i += 2) close(s[i]);
    }
    run_task(w, rank, arg);
}

TEST(strangers_do_not_disturb) {
    static World w;
    begin_world(&w, 4, strangers_then_task, &(Task){run_order, 20});
    end_world(&w);
    assert_statuses(&w, "strangers", 0, -1, 0);
    const char *one = strstr(w.text, "a process was refused");
    assert_true(one && !strstr(one + 1, "a process was refused"));
}

/* Process 0 closes the first connections, as it does when it has no room for more. Process 1 must try
 * again. */
static void drop_then_task(const World *w, int rank, const void *arg) {
    if (rank == 0) {
        struct sockaddr_in a = at_port(w->port);
        const int one = 1, s = socket(AF_INET, SOCK_STREAM, 0);
        setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        assert_return_code(bind(s, (void *)&a, sizeof a), errno);
        assert_return_code(listen(s, 8), errno);
        for (int i = 0; i < 3; i++) close(accept(s, NULL, NULL));
        close(s);
    }
    run_task(w, rank, arg);
}

TEST(a_process_that_is_dropped_connects_again) {
    static World w;
    begin_world(&w, 3, drop_then_task, &(Task){run_order, 20});
    end_world(&w);
    assert_statuses(&w, "dropped", 0, -1, 0);
}

typedef struct Join {
    int rank, world; /* as process 1 claims */
    const char *build, *run;
    const char *says;
} Join;

/* Process 1 claims values that process 0 does not expect. Process 0 must be unaffected. */
static void join(const World *w, int rank, const void *arg) {
    const Join *j = arg;
    CommLaunch l = launch_of(w, rank);
    CommOptions o = {.meet_s = 1, .build = "this"};
    Comm *c;
    if (rank == 1) {
        l.process = j->rank, l.processes = j->world, o.build = j->build;
        snprintf(l.run, sizeof l.run, "%s", j->run);
    }
    const Err e = comm_tcp(&l, &o, &c);
    if (e.code) fprintf(stderr, "%d: %s\n", rank, e.msg);
    _exit(e.code);
}

TEST(a_process_of_another_run_is_refused) {
    static const Join CASES[] = {
        {1, 3, "this", "", "process 0 expects 2 processes, but process 1 expects 3"},
        {1, 2, "that", "", "process 0 runs isotron 0.1.0 this, but process 1 runs isotron 0.1.0 that"},
        {1, 2, "this", "other", "process 0 belongs to another run"},
        {2, 2, "this", "", "process 2 of 2 cannot exist: give each process a RANK from 0 to 1"},
    };
    enum { N = sizeof CASES / sizeof *CASES };
    static World w[N];
    for (int i = 0; i < N; i++) begin_world(&w[i], 2, join, &CASES[i]);
    for (int i = 0; i < N; i++) {
        end_world(&w[i]);
        assert_words(w[i].text, CASES[i].says,
                     (const char *const[SAYS]){CASES[i].says, "1: this process may not join the run: ",
                                               "0: process 0 waited 1 s at port ", "for process 1 of 2",
                                               "COMM WARNING process 0 waited 0.1 s at port "});
        assert_statuses(&w[i], CASES[i].says, ERR_INFRA, 1, ERR_USER);
    }
}

/* Processes 1 and 2 have the same number. The one that comes first is accepted. */
static void join_as_second(const World *w, int rank, const void *arg) {
    (void)arg;
    const CommLaunch l = launch_of(w, rank ? 2 : 0);
    Comm *c;
    const Err e = comm_tcp(&l, &(CommOptions){.meet_s = 1}, &c);
    fprintf(stderr, "%s\n", e.msg);
    _exit(e.code);
}

TEST(the_second_process_of_a_number_is_refused) {
    static World w;
    begin_world(&w, 3, join_as_second, NULL);
    end_world(&w);
    const int refused = WEXITSTATUS(w.status[1]) == ERR_USER ? 1 : 2;
    assert_statuses(&w, "twice", ERR_INFRA, refused, ERR_USER);
    assert_words(w.text, "twice",
                 (const char *const[SAYS]){"\nthis process may not join the run: two processes have the "
                                           "number 2: give each process a different RANK\n",
                                           "process 0 waited 1 s at port ", "for process 1 of 3"});
}

/* Handshakes of processes that connect to each other (tcp_meet.c). */
enum {
    HELLO = 560,
    HELLO_SECRET = 136,
    HELLO_RANK = 148,
    ANSWER = 256,
    ANSWER_SECRET = 248,
    PLACE = 24,
    WORLD = 4
};

/* Ends the process on failure. A failed assertion would continue with the next test. */
static void must(bool done, const char *what) {
    if (!done) fprintf(stderr, "failed: %s\n", what), _exit(ERR_FAILED);
}

static void receive(int s, void *bytes, size_t n) {
    must(recv(s, bytes, n, MSG_WAITALL) == (ssize_t)n, "receive");
}

/* Receives the hello of the last process, which sends it to this process instead of process 0. */
static void intercept_hello(World w, unsigned char *hello) {
    w.port = free_port();
    struct sockaddr_in a = at_port(w.port);
    const int s = socket(AF_INET, SOCK_STREAM, 0);
    must(!bind(s, (void *)&a, sizeof a) && !listen(s, 8), "listen");
    const pid_t sender = fork();
    if (!sender) {
        int sockets[WORLD];
        const CommLaunch l = launch_of(&w, WORLD - 1);
        _exit(tcp_meet(&l, &(CommOptions){0}, sockets).code);
    }
    receive(accept(s, NULL, NULL), hello, HELLO);
    kill(sender, SIGKILL), waitpid(sender, NULL, 0);
    close(s);
}

/* Whether the process at `port` closes the connection within `ms` if the hello has this secret and rank. */
static bool is_refused(int port, const unsigned char *hello, uint64_t secret, int32_t rank, int ms) {
    struct pollfd end = {.events = POLLIN};
    unsigned char sent[HELLO], byte;
    const int s = connect_to(port);
    memcpy(sent, hello, HELLO);
    memcpy(sent + HELLO_SECRET, &secret, sizeof secret), memcpy(sent + HELLO_RANK, &rank, sizeof rank);
    must(send(s, sent, HELLO, MSG_NOSIGNAL) == HELLO, "send a hello");
    end.fd = s;
    return poll(&end, 1, ms) == 1 && recv(s, &byte, 1, 0) == 0;
}

/* The last process connects to process 0. To processes 1 and 2, it first sends a wrong secret or rank, then
 * the correct ones. */
static void show_secrets(const World *w, int rank, const void *arg) {
    unsigned char hello[HELLO], said[ANSWER], place[WORLD][PLACE];
    (void)arg;
    if (rank < WORLD - 1) {
        int sockets[WORLD];
        const CommLaunch l = launch_of(w, rank);
        must(!tcp_meet(&l, &(CommOptions){.meet_s = 10}, sockets).code, "meet");
        struct pollfd end = {.fd = sockets[WORLD - 1], .events = POLLIN};
        poll(&end, 1, 10000);
        _exit(0);
    }
    intercept_hello(*w, hello);
    const int s = connect_to(w->port);
    must(send(s, hello, HELLO, MSG_NOSIGNAL) == HELLO, "send a hello to process 0");
    receive(s, said, ANSWER), receive(s, place, sizeof place);
    uint64_t secret;
    memcpy(&secret, said + ANSWER_SECRET, sizeof secret);
    printf("secret %016llx\n", (unsigned long long)secret);
    for (int r = 1; r < rank; r++) {
        int32_t port;
        memcpy(&port, place[r], sizeof port);
        const struct {
            uint64_t secret;
            int rank;
            bool refused;
        } shown[] = {
            {0, rank, true},      {secret ^ 1, rank, true}, {secret ^ (UINT64_C(1) << 63), rank, true},
            {secret, r, true},    {secret, 0, true},        {secret, WORLD, true},
            {secret, rank, false}};
        for (size_t i = 0; i < sizeof shown / sizeof *shown; i++) {
            const bool refused = shown[i].refused;
            if (is_refused(port, hello, shown[i].secret, shown[i].rank, refused ? 5000 : 50) == refused)
                continue;
            printf("process %d, hello %d: %s\n", r, (int)i, refused ? "taken" : "refused");
            exit(0);
        }
    }
    fflush(stdout);
    _exit(0);
}

TEST(each_process_checks_the_secret_of_the_run) {
    static World w[2];
    for (int i = 0; i < 2; i++) begin_world(&w[i], WORLD, show_secrets, NULL);
    for (int i = 0; i < 2; i++) {
        end_world(&w[i]);
        assert_statuses(&w[i], "secrets", 0, -1, 0);
        if (strlen(w[i].text) != strlen("secret 0123456789abcdef\n")) fail_msg("%s", w[i].text);
    }
    assert_string_not_equal(w[0].text, w[1].text);
}

TEST(a_process_that_cannot_be_reached_is_named) {
    static const char *const CASES[][2] = {
        {"127.0.0.1", "process 0 at 127.0.0.1, port 1 (Connection refused)"},
        {"no host", "process 0 at no host, port 1 ("}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        CommLaunch l = {.by = COMM_TCP, .processes = 2, .process = 1, .port = 1};
        Comm *c;
        snprintf(l.host, sizeof l.host, "%s", CASES[i][0]);
        const Err e = comm_tcp(&l, &(CommOptions){.meet_s = 0.2}, &c);
        if (e.code != ERR_INFRA || !strstr(e.msg, CASES[i][1])) fail_msg("%s: %s", CASES[i][0], e.msg);
    }
}

static void leave_early(const World *w, int rank, const void *arg) {
    const CommLaunch l = launch_of(w, rank);
    Comm *c;
    (void)arg;
    if (rank == 2) _exit(0);
    if (rank == 1) alarm(1);
    const Err e = comm_tcp(&l, &(CommOptions){0}, &c);
    fprintf(stderr, "%d: %s\n", rank, e.msg);
    _exit(e.code);
}

TEST(an_end_before_the_meeting_ends_it) {
    static World w;
    begin_world(&w, 3, leave_early, NULL);
    end_world(&w);
    assert_words(w.text, "left", (const char *const[SAYS]){"process 1 ended before all 3 processes had met"});
    assert_in_time(&w, "left", 1 + SLACK_S);
    w.status[2] = w.status[1];
    assert_statuses(&w, "left", -SIGALRM, 0, ERR_INFRA);
}

int main(void) { return run_all_tests(begin_to_stop, NULL); }
