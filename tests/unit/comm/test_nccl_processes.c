/* Tests faults of processes that communicate over NCCL, with the default deadline of 10 minutes. The NCCL
 * library of this test moves no data. */
#include "unit/comm/tcp_world.h"

#include <stdatomic.h>
#include <sys/mman.h>

#include "comm/nccl/library.h"
#include "tensor/backend.h"
#include "unit/comm/graphs.h"

enum { RANKS = 4, AT_ONCE_S = 5, REMOTE_ERROR = 6 };

/* Many processes end during this test. The thread sanitizer calls this function by name. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void) { return "atexit_sleep_ms=0"; }

/* ---- the library ---- */

/* State in memory that the processes of a world share. */
typedef struct Library {
    atomic_int arrived[RANKS]; /* number of operations that each rank has started on its GPU */
    atomic_int error;          /* error of the communicators */
} Library;

static Library *library; /* in the parent: of the world that it starts; in a rank: of its world */

struct ncclComm {
    int rank, operations;
};

typedef struct Operation {
    int rank, number;
} Operation;

/* Like an NCCL kernel, returns when all ranks have arrived. */
static void run_operation(void *arg) {
    const Operation *o = arg;
    atomic_store(&library->arrived[o->rank], o->number);
    for (int r = 0; r < RANKS; r++)
        while (atomic_load(&library->arrived[r]) < o->number) usleep(1000);
    free(arg);
}

static int all_reduce(const void *in, void *out, size_t n, int type, int op, NcclComm c, void *stream) {
    (void)in, (void)out, (void)n, (void)type, (void)op;
    Operation *o = mem_alloc(sizeof *o);
    *o = (Operation){c->rank, ++c->operations};
    ((HostStream *)stream)->add(stream, run_operation, o);
    return NCCL_SUCCESS;
}

static int get_id(NcclId *id) {
    *id = (NcclId){"id"};
    return NCCL_SUCCESS;
}

static int join(NcclComm *c, int ranks, NcclId id, int rank) {
    (void)ranks, (void)id;
    *c = mem_zero(1, sizeof **c);
    (*c)->rank = rank;
    return NCCL_SUCCESS;
}

static int leave(NcclComm c) {
    free(c);
    return NCCL_SUCCESS;
}

static int get_error(NcclComm c, int *error) {
    (void)c;
    *error = atomic_load(&library->error);
    return NCCL_SUCCESS;
}

static const char *error_text(int error) { return error == REMOTE_ERROR ? "remote error" : "unknown"; }

static const char *last_error(NcclComm c) {
    (void)c;
    return "planted";
}

/* Linked with --wrap=nccl_load. */
Err __wrap_nccl_load(const char *file, Nccl *n);
Err __wrap_nccl_load(const char *file, Nccl *n) {
    (void)file;
    *n = (Nccl){.version = 22809,
                .host_memory = true,
                .GetUniqueId = get_id,
                .CommInitRank = join,
                .CommDestroy = leave,
                .CommGetAsyncError = get_error,
                .AllReduce = all_reduce,
                .GetErrorString = error_text,
                .GetLastError = last_error};
    return ERR_OK;
}

/* ---- programs ---- */

static CommMain *program;  /* program of the same world as `library` */
static atomic_bool broken; /* the GPU of this process has failed */

/* The rank waits for its GPU in a call, so the watchdog thread must detect the GPU's error. */
static bool event_happened(Device *d, DeviceEvent *e) {
    if (atomic_load(&broken)) fault(__FILE__, __LINE__, "cudaEventQuery", "cudaErrorIllegalAddress");
    return device_cpu_backend.event_happened(d, e);
}

static void over_nccl(void *arg, Comm *c) {
    DeviceBackend backend = cpu_with_graphs();
    char text[200];
    backend.event_happened = event_happened;
    world_device = device_cpu(1);
    world_device->backend = &backend;
    const CommDeviceOptions options = {"planted", false, 0, false};
    const Err e = comm_open_device(c, world_device, &options, text);
    CHECK(!e.code, "%s", e.msg);
    program(arg, c);
    comm_close_device(c);
    device_graph_free(world_device, graphs.launched);
    device_free(world_device);
}

/* Ends rank 2 with the signal while the other ranks wait in their next operation. If the signal is 0, NCCL
 * reports an error instead. */
static void end_by(int signal) {
    usleep(200 * 1000);
    if (signal)
        raise(signal);
    else
        atomic_store(&library->error, REMOTE_ERROR);
    sleep(20);
}

static void in_operation(Comm *c, int signal) {
    small_run(c, small_call(c, COMM_ALL_REDUCE, "before"));
    if (comm_rank(c) == 2) end_by(signal);
    small_run(c, small_call(c, COMM_ALL_REDUCE, "after"));
}

static void in_graph(Comm *c, int signal) {
    DeviceGraph *g = record_all_reduce(c);
    if (comm_rank(c) == 2) end_by(signal);
    launch_graph(c, g);
    device_wait(world_device);
}

static void killed(void *arg, Comm *c) { (void)arg, in_operation(c, SIGKILL); }
static void stopped(void *arg, Comm *c) { (void)arg, in_operation(c, SIGSTOP); }
static void nccl_fails(void *arg, Comm *c) { (void)arg, in_operation(c, 0); }
static void killed_in_graph(void *arg, Comm *c) { (void)arg, in_graph(c, SIGKILL); }
static void stopped_in_graph(void *arg, Comm *c) { (void)arg, in_graph(c, SIGSTOP); }
static void nccl_fails_in_graph(void *arg, Comm *c) { (void)arg, in_graph(c, 0); }

/* The GPU of rank 2 fails while rank 2 waits for rank 1, which does not arrive. */
static void gpu_fails(void *arg, Comm *c) {
    (void)arg;
    small_run(c, small_call(c, COMM_ALL_REDUCE, "before"));
    if (comm_rank(c) == 2) atomic_store(&broken, true);
    if (comm_rank(c) == 1) sleep(20);
    small_run(c, small_call(c, COMM_ALL_REDUCE, "after"));
}

/* Rank 2 is late by twice the time after which the warning is due. */
static void slow(void *arg, Comm *c) {
    (void)arg;
    small_run(c, small_call(c, COMM_ALL_REDUCE, "before"));
    if (comm_rank(c) == 2) sleep(1);
    small_run(c, small_call(c, COMM_ALL_REDUCE, "slow"));
}

/* ---- worlds ---- */

static void begin(World *w, CommMain *run, double deadline_s) {
    program = run;
    library = mmap(NULL, sizeof *library, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(library != MAP_FAILED);
    begin_world(w, RANKS, run_task, &(Task){over_nccl, deadline_s});
    munmap(library, sizeof *library);
}

#define OPERATION "all_reduce sum of 3 F32 at 'after', operation 1 of ranks 0 1 2 3"
#define GRAPH     "graph at 'the graph', operation 0 of ranks 0 1 2 3"

static const struct Case {
    const char *name;
    CommMain *run;
    int of_rank_2; /* how rank 2 ends */
    double seconds;
    const char *says[SAYS];
} CASES[] = {
    {"stopped",
     stopped,
     -SIGKILL,
     10,
     {"COMM FAULT rank 2 has not been heard from for 6.", OPERATION, "rank 2 does not answer"}},
    {"stopped in a graph",
     stopped_in_graph,
     -SIGKILL,
     10,
     {"COMM FAULT rank 2 has not been heard from for 6.", GRAPH, "rank 2 does not answer"}},
    {"killed", killed, -SIGKILL, AT_ONCE_S, {"COMM FAULT rank 2 has ended", OPERATION}},
    {"killed in a graph", killed_in_graph, -SIGKILL, AT_ONCE_S, {"COMM FAULT rank 2 has ended", GRAPH}},
    {"NCCL fails",
     nccl_fails,
     ERR_INFRA,
     AT_ONCE_S,
     {"COMM FAULT NCCL reports an error on rank ", ": remote error; planted\n", OPERATION,
      "ranks that did not: 2\n"}},
    {"NCCL fails in a graph",
     nccl_fails_in_graph,
     ERR_INFRA,
     AT_ONCE_S,
     {"COMM FAULT NCCL reports an error on rank ", ": remote error; planted\n", GRAPH,
      "ranks that did not: 2\n"}},
    {"a GPU fails",
     gpu_fails,
     -SIGABRT,
     AT_ONCE_S,
     {"[rank 2, op none] cudaErrorIllegalAddress", "COMM FAULT rank 2 has ended", OPERATION}},
};
enum { N = sizeof CASES / sizeof *CASES, STOPPED_CASES = 2 }; /* the first cases, which take seconds */

static World worlds[N];

static int begin_to_stop(void **state) {
    (void)state;
    for (int i = 0; i < STOPPED_CASES; i++) begin(&worlds[i], CASES[i].run, 0);
    return 0;
}

TEST(faults_end_the_world_within_10_s) {
    for (int k = 1; k <= N; k++) {
        const int i = (k + STOPPED_CASES - 1) % N;
        const struct Case *t = &CASES[i];
        World *w = &worlds[i];
        if (i >= STOPPED_CASES) begin(w, t->run, 0);
        end_world(w);
        assert_words(w->text, t->name, t->says);
        assert_one_report(w->text, t->name);
        assert_statuses(w, t->name, ERR_INFRA, 2, t->of_rank_2);
        if (w->reported >= t->seconds)
            fail_msg("%s: reported after %.1f s:\n%s", t->name, w->reported, w->text);
    }
}

TEST(a_slow_rank_is_named) {
    static World w;
    begin(&w, slow, 5);
    end_world(&w);
    assert_statuses(&w, "slow", 0, -1, 0);
    assert_string_equal(w.text, "COMM WARNING rank 0 has waited 0.5 s of at most 5 s in all_reduce sum of 3 "
                                "F32 at 'slow', operation 1 of ranks 0 1 2 3\n  for ranks: 2\n");
}

int main(void) { return run_all_tests(begin_to_stop, NULL); }
