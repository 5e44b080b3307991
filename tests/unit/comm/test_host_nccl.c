/* Tests the NCCL stand-in for host memory (tests/nccl/host_nccl.c): the data that it moves, and the effect of each
 * planted fault. */
#include "unit/err.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/host_stream.h"
#include "comm/nccl/library.h"
#include "comm/transport.h"
#include "unit/comm/world.h"

/* Operations that hang leave their streams' threads running. The thread sanitizer calls this function by name. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void) { return "report_thread_leaks=0"; }

enum { MOST = 4, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6 };

static const struct {
    DType type;
    int nccl;
} TYPES[] = {{F64, NCCL_F64}, {F32, NCCL_F32}, {BF16, NCCL_BF16}, {F16, NCCL_F16},
             {I64, NCCL_I64}, {I32, NCCL_I32}, {U8, NCCL_U8}};

static Nccl nccl;
static NcclId shared_id[5];
static atomic_int arrived; /* number of members that have joined */

typedef struct Member {
    int rank, members;
    NcclId id;
    NcclComm comm;
    HostStream *stream;
    void (*body)(struct Member *);
    const void *arg;
    bool hangs; /* set by a body that hangs: the communicator and the stream are not freed */
} Member;

static void ok(int error) { CHECK(error == NCCL_SUCCESS, "NCCL returned %d", error); }
static void finish(HostStream *s) { host_stream_wait(s, host_stream_end(s)); }

static void *member_main(void *arg) {
    Member *m = arg;
    m->stream = host_stream_new();
    atomic_fetch_add(&arrived, 1);
    ok(nccl.CommInitRank(&m->comm, m->members, m->id, m->rank));
    CHECK(atomic_load(&arrived) == m->members, "a member does not wait for the others");
    m->body(m);
    if (m->hangs) return NULL;
    ok(nccl.CommDestroy(m->comm));
    host_stream_free(m->stream);
    return NULL;
}

static void run_members(int members, void (*body)(Member *), const void *arg) {
    Member member[MOST];
    pthread_t thread[MOST];
    NcclId id;
    ok(nccl.GetUniqueId(&id));
    atomic_store(&arrived, 0);
    for (int r = 0; r < members; r++) {
        member[r] = (Member){.rank = r, .members = members, .id = id, .body = body, .arg = arg};
        assert_int_equal(pthread_create(&thread[r], NULL, member_main, &member[r]), 0);
    }
    for (int r = 0; r < members; r++) pthread_join(thread[r], NULL);
}

static int all_reduce(const Member *m, const void *in, void *out, size_t n) {
    return nccl.AllReduce(in, out, n, NCCL_F32, NCCL_SUM, m->comm, m->stream);
}

/* ---- results ---- */

static void start(const Member *m, const CommCall *c, int type) {
    const size_t n = (size_t)c->n;
    ok(c->kind == COMM_ALL_REDUCE   ? nccl.AllReduce(c->in, c->out, n, type, NCCL_SUM, m->comm, m->stream)
       : c->kind == COMM_ALL_GATHER ? nccl.AllGather(c->in, c->out, n, type, m->comm, m->stream)
       : c->kind == COMM_REDUCE_SCATTER
           ? nccl.ReduceScatter(c->in, c->out, n, type, NCCL_SUM, m->comm, m->stream)
           : nccl.Broadcast(c->in, c->out, n, type, c->peer, m->comm, m->stream));
}

static void one_collective(const Member *m, CommKind kind, int type, int64_t n, bool in_place) {
    Trial t = {.call = {.kind = kind,
                        .reduction = COMM_SUM,
                        .dtype = TYPES[type].type,
                        .group = {.size = m->members, .rank = m->rank},
                        .n = n,
                        .peer = (int)(n % m->members)}};
    CommCall *c = &t.call;
    trial_sizes(&t);
    const bool gathers = kind == COMM_ALL_GATHER;
    const int64_t large = t.n_in > t.n_out ? t.n_in : t.n_out, small = t.n_in + t.n_out - large;
    char *whole = buffer_new(c->dtype, large), *other = buffer_new(c->dtype, small), *part = other;
    if (in_place) part = whole + (large > small ? (size_t)(m->rank * n) * dtype_size(c->dtype) : 0);
    c->in = gathers ? part : whole, c->out = gathers ? whole : part;
    char *in = gathers ? part : whole;
    for (int64_t i = 0; i < t.n_in; i++) dtype_store(in, c->dtype, i, value(m->rank, i));
    start(m, c, TYPES[type].nccl);
    finish(m->stream);
    for (int64_t i = 0; i < t.n_out; i++)
        CHECK(dtype_load(c->out, c->dtype, i) == expected(&t, i), "kind %d, %s, n %lld: element %lld is %g",
              (int)kind, dtype_name(c->dtype), (long long)n, (long long)i, dtype_load(c->out, c->dtype, i));
    for (int64_t i = 0; i < t.n_in && !in_place; i++)
        CHECK(dtype_load(in, c->dtype, i) == value(m->rank, i), "an input has changed");
    buffer_free(whole, c->dtype, large);
    buffer_free(other, c->dtype, small);
}

static void every_collective(Member *m) {
    static const CommKind KINDS[] = {COMM_ALL_REDUCE, COMM_REDUCE_SCATTER, COMM_ALL_GATHER, COMM_BROADCAST};
    static const int64_t SIZES[] = {0, 1, 7, 1600, 1000003};
    for (int k = 0; k < 4; k++)
        for (int t = 0; t < 7; t++)
            for (int s = 0; s < (m->members == 3 && t == 1 + k ? 5 : 4); s++)
                for (int in_place = 0; in_place < 2; in_place++)
                    one_collective(m, KINDS[k], t, SIZES[s], in_place);
}

/* The sum of these terms depends on the order, because they have all magnitudes, including subnormal numbers
 * and infinities. */
static void sums_of_the_host_transport(Member *m) {
    enum { N = 4000 };
    for (int t = 0; t < 4; t++) {
        const DType type = TYPES[t].type;
        double part[MOST][N], sum[N], want[N];
        const void *in[MOST];
        for (int k = 0; k < m->members; k++) {
            in[k] = part[k];
            for (int i = 0; i < N; i++)
                dtype_store(part[k], type, i,
                            philox_normal(9, (uint64_t)k, (uint64_t)i) * ldexp(1, i % 44 - 26) *
                                (i % 3 ? 1 : 8));
        }
        comm_reduce(COMM_SUM, type, in, m->members, 0, N, want);
        ok(nccl.AllReduce(part[m->rank], sum, N, TYPES[t].nccl, NCCL_SUM, m->comm, m->stream));
        finish(m->stream);
        CHECK(!memcmp(sum, want, N * dtype_size(type)), "sums of %s differ", dtype_name(type));
    }
}

/* ---- several communicators ---- */

/* There are communicators of all ranks, of pairs and of every second rank, each on its own stream. Ranks
 * start operations in different orders. */
static void crossed_communicators(Member *m) {
    enum { COMMS = 3, ROUNDS = 60 };
    const int r = m->rank, base[COMMS] = {0, r / 2 * 2, r % 2}, step[COMMS] = {1, 1, 2};
    const NcclId ids[COMMS] = {shared_id[0], shared_id[1 + r / 2], shared_id[3 + r % 2]};
    NcclComm comm[COMMS];
    HostStream *stream[COMMS];
    static float in[MOST], out[MOST][COMMS][ROUNDS];
    in[r] = (float)(1 << r);
    for (int c = 0; c < COMMS; c++) {
        ok(nccl.CommInitRank(&comm[c], c ? 2 : MOST, ids[c], c == 0 ? r : c == 1 ? r % 2 : r / 2));
        stream[c] = host_stream_new();
    }
    for (int c = 0; c < COMMS; c++) /* the first call connects the members */
        ok(nccl.AllReduce(&in[r], &out[r][c][0], 1, NCCL_F32, NCCL_SUM, comm[c], stream[c]));
    for (int round = 0; round < ROUNDS; round++)
        for (int k = 0; k < COMMS; k++) {
            const int c = r % 2 ? k : COMMS - 1 - k;
            ok(nccl.AllReduce(&in[r], &out[r][c][round], 1, NCCL_F32, NCCL_SUM, comm[c], stream[c]));
        }
    for (int c = 0; c < COMMS; c++) {
        ok(nccl.CommDestroy(comm[c]));
        host_stream_free(stream[c]);
        float want = 0;
        for (int k = 0; k < (c ? 2 : MOST); k++) want += (float)(1 << (base[c] + k * step[c]));
        for (int round = 0; round < ROUNDS; round++) CHECK(out[r][c][round] == want, "communicator %d", c);
    }
}

static void a_group_joins_and_runs_all_members_in_one_thread(void **state) {
    (void)state;
    NcclId id;
    NcclComm comm[3];
    HostStream *stream[3];
    float x[3] = {1, 2, 4};
    ok(nccl.GetUniqueId(&id));
    ok(nccl.GroupStart());
    for (int r = 0; r < 3; r++) ok(nccl.CommInitRank(&comm[r], 3, id, r));
    ok(nccl.GroupEnd());
    for (int r = 0; r < 3; r++) stream[r] = host_stream_new();
    ok(nccl.GroupStart());
    for (int r = 0; r < 3; r++) ok(nccl.AllReduce(&x[r], &x[r], 1, NCCL_F32, NCCL_SUM, comm[r], stream[r]));
    ok(nccl.GroupStart());
    ok(nccl.GroupEnd());
    for (int r = 0; r < 3; r++)
        assert_int_equal(host_stream_end(stream[r]), 0); /* operations start at the outer GroupEnd */
    ok(nccl.GroupEnd());
    for (int r = 0; r < 3; r++) assert_int_equal(host_stream_end(stream[r]), 1);
    for (int r = 0; r < 3; r++) finish(stream[r]);
    for (int r = 0; r < 3; r++) assert_true(x[r] == 7);
    for (int r = 0; r < 3; r++) ok(nccl.CommDestroy(comm[r])), host_stream_free(stream[r]);
}

/* ---- messages ---- */

/* Every member sends two messages to every member, including itself. The order inside the group differs
 * between members. */
static void exchange(Member *m) {
    enum { DEEP = 2, N = 5000 };
    static const int64_t SIZES[DEEP] = {3, N};
    const int me = m->rank;
    char *in[MOST][DEEP], *out[MOST][DEEP];
    ok(nccl.GroupStart());
    for (int d = 0; d < DEEP; d++)
        for (int k = 0; k < 2 * m->members; k++) {
            const int peer = (k / 2 + me) % m->members;
            const bool sends = (k + me) % 2;
            const int64_t n = sends ? pair_count(SIZES[d], me, peer) : pair_count(SIZES[d], peer, me);
            char *buffer = (sends ? in : out)[peer][d] = buffer_new(BF16, n);
            for (int64_t i = 0; i < n && sends; i++) dtype_store(buffer, BF16, i, value(me + peer + d, i));
            ok(sends ? nccl.Send(buffer, (size_t)n, NCCL_BF16, peer, m->comm, m->stream)
                     : nccl.Recv(buffer, (size_t)n, NCCL_BF16, peer, m->comm, m->stream));
        }
    ok(nccl.GroupEnd());
    CHECK(host_stream_end(m->stream) == 1, "a group is one task");
    finish(m->stream);
    for (int d = 0; d < DEEP; d++)
        for (int peer = 0; peer < m->members; peer++) {
            const int64_t n = pair_count(SIZES[d], peer, me);
            for (int64_t i = 0; i < n; i++)
                CHECK(dtype_load(out[peer][d], BF16, i) == value(me + peer + d, i), "message %d from %d", d,
                      peer);
            buffer_free(out[peer][d], BF16, n);
            buffer_free(in[peer][d], BF16, pair_count(SIZES[d], me, peer));
        }
}

static bool runs(const Member *m) {
    usleep(50 * 1000);
    return !host_stream_passed(m->stream, host_stream_end(m->stream));
}

static void a_send_waits(Member *m) {
    static atomic_bool received;
    float x = (float)m->rank;
    if (m->rank) {
        usleep(50 * 1000);
        atomic_store(&received, true);
        ok(nccl.Recv(&x, 1, NCCL_F32, 0, m->comm, m->stream));
    } else {
        ok(nccl.Send(&x, 1, NCCL_F32, 1, m->comm, m->stream));
    }
    finish(m->stream);
    CHECK(atomic_load(&received) && x == 0, "the send is done before the receive");
}

/* ---- errors ---- */

static void wrong_arguments(Member *m) {
    float x[4] = {0};
    HostStream *s = m->stream;
    NcclComm c = m->comm, none;
    NcclConfig unmarked = nccl_config(4, false), zero = nccl_config(0, false),
               crossed = nccl_config(4, false);
    unmarked.magic = 0, zero.most_blocks = 0, crossed.least_blocks = 5;
    const int errors[] = {all_reduce(m, NULL, x, 1),
                          all_reduce(m, x, NULL, 1),
                          nccl.AllReduce(x, x, 1, NCCL_F32, 1, c, s), /* an unsupported reduction */
                          nccl.AllReduce(x, x, 1, 3, NCCL_SUM, c, s), /* an unsupported type */
                          nccl.AllReduce(x, x, 1, NCCL_F32, NCCL_SUM, NULL, s),
                          nccl.AllReduce(x, x, 1, NCCL_F32, NCCL_SUM, c, NULL),
                          nccl.Broadcast(x, x, 1, NCCL_F32, 1, c, s),
                          nccl.Send(x, 1, NCCL_F32, -1, c, s),
                          nccl.Recv(x, 1, NCCL_F32, 1, c, s),
                          nccl.Send(NULL, 1, NCCL_F32, 0, c, s),
                          nccl.CommInitRank(&none, 1, m->id, 1),
                          nccl.CommInitRank(&none, 1, m->id, 0),
                          nccl.CommInitRankConfig(&none, 1, m->id, 0, NULL),
                          nccl.CommInitRankConfig(&none, 1, m->id, 0, &unmarked),
                          nccl.CommInitRankConfig(&none, 1, m->id, 0, &zero),
                          nccl.CommInitRankConfig(&none, 1, m->id, 0, &crossed)};
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        CHECK(errors[i] == INVALID_ARGUMENT, "call %zu returned %d", i, errors[i]);
    CHECK(nccl.GroupEnd() == INVALID_USAGE, "a group ends that has not started");
    ok(all_reduce(m, NULL, NULL, 0)); /* starts nothing */
    ok(nccl.GroupStart());
    ok(all_reduce(m, x, x, 1));
    CHECK(all_reduce(m, NULL, x, 1) == INVALID_ARGUMENT, "in a group");
    CHECK(nccl.GroupEnd() == INVALID_ARGUMENT && host_stream_end(s) == 0, "the group has started");
    CHECK(!strcmp(nccl.GetLastError(c), "the send buffer is NULL"), "%s", nccl.GetLastError(c));
    ok(all_reduce(m, x, x, 1));
    finish(s);
}

static void expect_error(Member *m, int want, const char *why) {
    m->hangs = true;
    int error = NCCL_SUCCESS;
    for (int ms = 0; ms < 20000 && error == NCCL_SUCCESS; ms++) {
        ok(nccl.CommGetAsyncError(m->comm, &error));
        usleep(1000);
    }
    CHECK(error == want && strstr(nccl.GetLastError(m->comm), why), "error %d: %s", error,
          nccl.GetLastError(m->comm));
    CHECK(runs(m), "an operation with an error has ended");
    ok(nccl.CommDestroy(m->comm));
}

/* Member 1's arguments differ from those of the other members. */
static void disagree(Member *m) {
    static float x[2][8];
    const char *in = m->arg;
    float *mine = x[m->rank];
    const bool differs = m->rank == 1;
    const int type = differs && !strcmp(in, "type") ? NCCL_I32 : NCCL_F32;
    const size_t n = differs && strcmp(in, "type") ? 3 : 4;
    if (differs && !strcmp(in, "kind"))
        ok(nccl.AllGather(mine + 1, mine, 1, type, m->comm, m->stream));
    else if (!strcmp(in, "root"))
        ok(nccl.Broadcast(mine, mine, 4, type, m->rank, m->comm, m->stream));
    else if (strcmp(in, "message"))
        ok(nccl.AllReduce(mine, mine, n, type, NCCL_SUM, m->comm, m->stream));
    else
        ok(differs ? nccl.Recv(mine, n, type, 0, m->comm, m->stream)
                   : nccl.Send(mine, n, type, 1, m->comm, m->stream));
    char why[40];
    snprintf(why, sizeof why, "the %s differs", strcmp(in, "message") ? in : "count");
    expect_error(m, INVALID_USAGE, why);
}

/* ---- delays and planted faults ---- */

/* This program has data races, which the delay exposes. */
__attribute__((no_sanitize_thread)) static void delayed(Member *m) {
    float in = 1, out = 0, both = 1;
    ok(nccl.GroupStart());
    ok(all_reduce(m, &in, &out, 1));
    ok(all_reduce(m, &both, &both, 1));
    ok(nccl.GroupEnd());
    usleep(20 * 1000); /* an operation would be complete by now if it had started without a delay */
    CHECK(isnan(out) && both == 1, "an early read sees %g and %g", (double)out, (double)both);
    in = 5;
    finish(m->stream);
    CHECK(out == 10 && both == 2, "the input was read early: %g, %g", (double)out, (double)both);
}

static void dropped_tail(Member *m) {
    const float in[20] = {[11] = 1, [12] = 1};
    float out[40], none[20];
    for (int kind = 0; kind < 3; kind++) {
        const int n = kind == 2 ? 40 : kind ? 10 : 20;
        for (int i = 0; i < 40; i++) out[i] = -1;
        ok(kind == 0   ? all_reduce(m, in, out, 20)
           : kind == 1 ? nccl.ReduceScatter(in, out, 10, NCCL_F32, NCCL_SUM, m->comm, m->stream)
                       : nccl.AllGather(in, out, 20, NCCL_F32, m->comm, m->stream));
        ok(nccl.Broadcast(in, none, 20, NCCL_F32, 0, m->comm, m->stream));
        finish(m->stream);
        CHECK(none[19] == 0, "a broadcast drops nothing");
        for (int i = 0; i < 40; i++)
            CHECK((out[i] == -1) == (i >= n - 8), "kind %d, element %d: %g", kind, i, (double)out[i]);
    }
}

static void half_sum(Member *m) {
    double x = 1 + 0x1p-9;
    float y = (float)x;
    ok(nccl.AllReduce(&x, &x, 1, NCCL_F64, NCCL_SUM, m->comm, m->stream));
    ok(all_reduce(m, &y, &y, 1));
    finish(m->stream);
    CHECK(x == 2 && y == 2, "%g, %g", x, (double)y);
}

static void two_operations(Member *m) {
    static float x[2];
    m->hangs = true;
    ok(all_reduce(m, &x[m->rank], &x[m->rank], 1));
    finish(m->stream);
    ok(all_reduce(m, &x[m->rank], &x[m->rank], 1));
    if (!m->arg)
        CHECK(runs(m), "the second operation has ended");
    else
        expect_error(m, REMOTE_ERROR, "planted");
}

/* Member 1 sleeps in each of two operations. Another member may start its first operation late. */
static void slow(Member *m) {
    float x = 0;
    ok(all_reduce(m, &x, &x, 1));
    finish(m->stream);
    const int64_t begin = clock_ns();
    ok(all_reduce(m, &x, &x, 1));
    finish(m->stream);
    CHECK(m->rank != 1 || clock_ns() - begin >= 100000000, "no member was slow");
}

static void one_operation(Member *m) {
    float x = 1;
    ok(all_reduce(m, &x, &x, 1));
    finish(m->stream);
}

static void an_unknown_fault_aborts(void **state) {
    (void)state;
    static const char *const UNKNOWN[] = {"", "drop", "lost", "lost:1x", "slow:1"};
    for (int i = 0; i < 5; i++) {
        char text[200] = "";
        int ends[2], status;
        assert_int_equal(pipe(ends), 0);
        const pid_t child = fork();
        if (child == 0) {
            NcclComm c;
            dup2(ends[1], STDERR_FILENO);
            signal(SIGABRT, SIG_DFL);
            setenv("HOST_NCCL_FAULT", UNKNOWN[i], 1);
            nccl.CommInitRank(&c, 1, (NcclId){"alone"}, 0);
            _exit(0);
        }
        close(ends[1]);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(read(ends[0], text, sizeof text - 1) > 0);
        close(ends[0]);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
        assert_non_null(strstr(text, "HOST_NCCL_FAULT="));
    }
}

static int load_library(void **state) {
    (void)state;
    assert_ok(nccl_load(HOST_NCCL, &nccl));
    assert_int_equal(nccl.version, 22809);
    assert_true(nccl.host_memory);
    for (int i = 0; i < 5; i++) ok(nccl.GetUniqueId(&shared_id[i]));
    return 0;
}

static const struct Case {
    const char *name;
    void (*body)(Member *);
    int least, most; /* members */
    const char *arg, *variable, *text;
} CASES[] = {
    {"collectives", every_collective, 1, MOST, NULL, NULL, NULL},
    {"sums are bitwise equal", sums_of_the_host_transport, 1, MOST, NULL, NULL, NULL},
    {"communicators are independent", crossed_communicators, MOST, MOST, NULL, NULL, NULL},
    {"messages of a group have any order", exchange, 1, MOST, NULL, NULL, NULL},
    {"a send ends with its receive", a_send_waits, 2, 2, NULL, NULL, NULL},
    {"wrong arguments", wrong_arguments, 1, 1, NULL, NULL, NULL},
    {"members disagree on the kind", disagree, 2, 2, "kind", NULL, NULL},
    {"members disagree on the type", disagree, 2, 2, "type", NULL, NULL},
    {"members disagree on the count", disagree, 2, 2, "count", NULL, NULL},
    {"members disagree on the root", disagree, 2, 2, "root", NULL, NULL},
    {"members disagree on a message", disagree, 2, 2, "message", NULL, NULL},
    {"a delay", delayed, 2, 2, NULL, "HOST_NCCL_DELAY_US", "400000"},
    {"drop_tail", dropped_tail, 2, 2, NULL, "HOST_NCCL_FAULT", "drop_tail"},
    {"half_sum", half_sum, 2, 2, NULL, "HOST_NCCL_FAULT", "half_sum"},
    {"lost", two_operations, 2, 2, NULL, "HOST_NCCL_FAULT", "lost:1"},
    {"error", two_operations, 2, 2, "error", "HOST_NCCL_FAULT", "error:1"},
    {"slow", slow, 2, 2, NULL, "HOST_NCCL_FAULT", "slow:1:100"},
    {"no fault of one member", one_operation, 1, 1, NULL, "HOST_NCCL_FAULT", "lost:0"},
};

static void run_case(void **state) {
    const struct Case *c = *state;
    if (c->variable) setenv(c->variable, c->text, 1);
    for (int members = c->least; members <= c->most; members++) run_members(members, c->body, c->arg);
    if (c->variable) unsetenv(c->variable);
}

int main(void) {
    enum { N = sizeof CASES / sizeof *CASES };
    struct CMUnitTest tests[N + 2] = {
        cmocka_unit_test(a_group_joins_and_runs_all_members_in_one_thread),
        cmocka_unit_test(an_unknown_fault_aborts),
    };
    for (int i = 0; i < N; i++)
        tests[2 + i] = (struct CMUnitTest){CASES[i].name, run_case, NULL, NULL, (void *)(uintptr_t)&CASES[i]};
    return cmocka_run_group_tests(tests, load_library, NULL);
}
