/* Tests the NCCL transport with the library of tests/nccl, which works on host memory. */
#include "unit/cmocka_all.h"

#include <dlfcn.h>

#include "base/err.h"
#include "comm/transport.h"
#include "nccl/host_nccl.h"
#include "tensor/backend.h"
#include "unit/comm/ending.h"
#include "unit/comm/graphs.h"

/* A world that ends with a fault does not join its threads. The thread sanitizer calls this function by name. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void) { return "report_thread_leaks=0"; }

typedef struct Program {
    CommMain *run;
    void *arg;
    int most_blocks; /* 0: no limit */
    bool registers;
    bool breaks; /* the GPU of rank 2 fails */
} Program;

/* Simulates a GPU error while the rank waits in a call, so that the watchdog thread must detect it. */
static bool break_in_watchdog(Device *d, DeviceEvent *e) {
    if (graphs.add) return device_cpu_backend.event_happened(d, e); /* the rank's thread */
    fault(__FILE__, __LINE__, "cudaEventQuery", "cudaErrorIllegalAddress");
}

/* Runs the program of a rank with a device whose memory NCCL can access. */
static void over_nccl(void *arg, Comm *c) {
    const Program *p = arg;
    const CommDeviceOptions options = {
        .library = HOST_NCCL, .most_blocks = p->most_blocks, .registers = p->registers};
    char text[200], want[200] = "NCCL 2.28.9";
    if (p->registers) strcat(want, ", registered buffers");
    if (p->most_blocks)
        snprintf(want, sizeof want, "NCCL 2.28.9, at most %d thread blocks for each operation",
                 p->most_blocks);
    DeviceBackend backend = cpu_with_graphs();
    if (p->breaks && comm_rank(c) == 2) backend.event_happened = break_in_watchdog;
    world_device = device_cpu(1);
    world_device->backend = &backend;
    const Err e = comm_open_device(c, world_device, &options, text);
    CHECK(!e.code && !strcmp(text, want), "%s%s", e.msg, text);
    p->run(p->arg, c);
    comm_close_device(c);
    device_graph_free(world_device, graphs.launched);
    device_free(world_device);
    world_device = NULL;
}

static void run(int world, const CommOptions *options, CommMain *program, void *arg) {
    comm_threads(world, options, over_nccl, &(Program){.run = program, .arg = arg});
}

TEST(all_kinds_on_all_types_and_sizes) {
    for (int world = 2; world <= 5; world++) run(world, NULL, run_all_kinds, &(int){6});
}

TEST(sums_are_those_of_the_host) {
    for (int world = 2; world <= 8; world += 3) run(world, NULL, run_order, NULL);
}

TEST(messages_keep_their_order_on_each_pair) {
    for (int world = 2; world <= 3; world++) run(world, NULL, run_messages, NULL);
}

/* Every rank first sends to the next rank, then receives. */
static void around_the_ring(void *arg, Comm *c) {
    enum { N = 20000, ROUNDS = 5 };
    (void)arg;
    const Group g = world_group(c);
    int32_t *held = mem_alloc(N * sizeof *held), *next = mem_alloc(N * sizeof *next);
    for (int i = 0; i < N; i++) held[i] = g.rank;
    for (int round = 1; round <= ROUNDS; round++) {
        CommCall call = {.dtype = I32,
                         .group = g,
                         .site = "ring",
                         .in = held,
                         .out = next,
                         .n = N,
                         .device = world_device};
        call.kind = COMM_SEND, call.peer = (g.rank + 1) % g.size;
        CommWork *send = comm_start(c, &call);
        call.kind = COMM_RECV, call.peer = (g.rank + g.size - 1) % g.size;
        CommWork *receive = comm_start(c, &call);
        comm_wait(c, send), comm_wait(c, receive);
        int32_t *old = held;
        held = next, next = old;
        const int32_t want = ((g.rank - round) % g.size + g.size) % g.size;
        CHECK(held[0] == want && held[N - 1] == want, "round %d: %d, not %d", round, held[0], want);
    }
    free(held), free(next);
}

TEST(neighbours_of_any_ring_exchange) {
    for (int world = 2; world <= 7; world++) run(world, NULL, around_the_ring, NULL);
}

/* The first collective and the first all-to-all of a group wait for its members, so all ranks must open
 * groups in the same order. */
static void interleaved(void *arg, Comm *c) {
    enum { MASKS = 7 };
    static const unsigned MASK[MASKS] = {
        1 << AXIS_TP, 1 << AXIS_CP, 1 << AXIS_DP, 1 << AXIS_PP, 1 << AXIS_DP | 1 << AXIS_CP,
        1 << AXIS_EP, MASK_DENSE};
    const Layout *layout = arg;
    const Mesh mesh = mesh_make(comm_world(c), comm_rank(c), layout->size);
    for (int i = 0; i < MASKS; i++) {
        float one[16] = {1}, other[16];
        int64_t counts[16];
        for (int k = 0; k < 16; k++) counts[k] = 1;
        CommCall open = {.kind = COMM_ALL_REDUCE,
                         .dtype = F32,
                         .group = mesh_group(&mesh, MASK[i]),
                         .site = "open",
                         .in = one,
                         .out = other,
                         .n = 1,
                         .in_counts = counts,
                         .out_counts = counts,
                         .device = world_device};
        comm_run(c, &open);
        open.kind = COMM_ALL_TO_ALL;
        comm_run(c, &open);
    }
    run_interleaved(arg, c);
}

TEST(works_of_many_groups_interleave) {
    run(16, NULL, interleaved, &(Layout){.size = {2, 2, 0, 2, 1, 4, 0}, .rounds = 10});
}

TEST(time_in_which_the_device_waits_is_exposed) { run(3, NULL, run_exposed, NULL); }

/* ---- thread blocks ---- */

static void collectives_and_messages(void *arg, Comm *c) {
    run_order(arg, c);
    around_the_ring(arg, c);
}

/* The limit must reach the communicators of the groups, and those of the pairs that exchange messages. */
TEST(a_limit_on_thread_blocks_is_that_of_every_communicator) {
    enum { RANKS = 3, JOINED = RANKS * (1 + 4) }; /* each rank of a ring belongs to four pairs */
    void *library = dlopen(HOST_NCCL, RTLD_NOW | RTLD_LOCAL);
    const HostNcclJoined *joined = dlsym(library, "host_nccl_joined");
    assert_non_null(joined);
    const HostNcclJoined before = *joined;
    comm_threads(RANKS, NULL, over_nccl, &(Program){.run = collectives_and_messages, .most_blocks = 12});
    assert_int_equal(joined->limited - before.limited, JOINED);
    assert_int_equal(joined->most_blocks, 12);
    assert_int_equal(joined->unlimited, before.unlimited);
    comm_threads(RANKS, NULL, over_nccl, &(Program){.run = collectives_and_messages});
    assert_int_equal(joined->limited - before.limited, JOINED);
    assert_int_equal(joined->unlimited - before.unlimited, JOINED);
    dlclose(library);
}

/* ---- registered memory ---- */

/* All-gathers in place in a registered buffer, from a registered buffer, and from unregistered memory. */
static void gathers_of_windows(void *arg, Comm *c) {
    enum { N = 5 };
    const Group all = comm_everyone(c);
    const int world = all.size, rank = all.rank;
    float *into = device_alloc(world_device, (size_t)(world * N) * sizeof *into, "test"),
          *from = device_alloc(world_device, N * sizeof *from, "test"), other[N];
    (void)arg;
    comm_register(c, &all, into, (size_t)(world * N) * sizeof *into);
    comm_register(c, &all, from, N * sizeof *from);
    float *const parts[] = {into + rank * N, from, other};
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < N; i++) parts[k][i] = (float)(100 * rank + 10 * k + i);
        comm_run(c, &(CommCall){.kind = COMM_ALL_GATHER,
                                .dtype = F32,
                                .group = all,
                                .site = "windows",
                                .in = parts[k],
                                .out = into,
                                .n = N,
                                .device = world_device});
        device_wait(world_device);
        for (int i = 0; i < world * N; i++)
            CHECK(into[i] == (float)(100 * (i / N) + 10 * k + i % N), "gather %d: element %d is %g", k, i,
                  into[i]);
    }
    comm_unregister(c, from);
    device_release(world_device, from, N * sizeof *from);
    comm_unregister(c, into);
    device_release(world_device, into, (size_t)(world * N) * sizeof *into);
}

TEST(gathers_between_windows_use_copy_engines) {
    enum { RANKS = 3 };
    void *library = dlopen(HOST_NCCL, RTLD_NOW | RTLD_LOCAL);
    const HostNcclJoined *joined = dlsym(library, "host_nccl_joined"), before = *joined;
    comm_threads(RANKS, NULL, over_nccl, &(Program){.run = gathers_of_windows});
    assert_int_equal(joined->windows, before.windows);
    comm_threads(RANKS, NULL, over_nccl, &(Program){.run = gathers_of_windows, .registers = true});
    assert_int_equal(joined->windows - before.windows, 2 * RANKS);
    assert_int_equal(joined->on_copy_engines - before.on_copy_engines, 2 * RANKS);
    dlclose(library);
}

/* ---- faults ---- */

static void one_is_dropped(void *arg, Comm *c) {
    (void)arg;
    if (comm_rank(c) == 2) comm_sabotage(c, (CommSabotage){.nth = 4});
    small_run(c, small_call(c, COMM_ALL_GATHER, "before"));
    small_run(c, small_call(c, COMM_ALL_REDUCE, "dropped"));
    sleep(20);
}

/* One rank does not connect; the others wait inside NCCL for the connection. */
static void one_does_not_connect(void *arg, Comm *c) {
    (void)arg;
    int64_t counts[FAULT_RANKS];
    for (int i = 0; i < FAULT_RANKS; i++) counts[i] = 1;
    small_run(c, small_call(c, COMM_ALL_GATHER, "before"));
    CommCall call = small_call(c, COMM_ALL_TO_ALL, "first");
    call.in_counts = call.out_counts = counts;
    if (comm_rank(c) != 1) small_run(c, call);
    sleep(20);
}

static void one_is_dropped_after_a_new_deadline(void *arg, Comm *c) {
    (void)arg;
    small_run(c, small_call(c, COMM_ALL_REDUCE, "before"));
    device_wait(world_device);
    comm_set_deadline(c, 1);
    if (comm_rank(c) != 2) small_run(c, small_call(c, COMM_ALL_REDUCE, "dropped"));
    sleep(20);
    _exit(0);
}

static void counts_differ(void *arg, Comm *c) {
    (void)arg;
    CommCall call = small_call(c, COMM_ALL_REDUCE, "counts");
    if (comm_rank(c) == 1) call.n++;
    small_run(c, call);
    sleep(20);
}

static void one_does_not_launch(void *arg, Comm *c) {
    DeviceGraph *g = record_all_reduce(c);
    (void)arg;
    if (comm_rank(c) != 2) launch_graph(c, g);
    sleep(20);
    _exit(0);
}

static void all_launch(void *arg, Comm *c) {
    (void)arg;
    launch_graph(c, record_all_reduce(c));
    sleep(20);
    _exit(0);
}

enum { NEVER = 1000 };
#define GRAPH "  graph at 'the graph', operation 0 of ranks 0 1 2 3\n"

TEST(faults_are_reported) {
    static const struct {
        CommMain *program;
        double deadline_s;
        const char *planted; /* fault of the library, or NULL if there is none */
        const char *says[SAYS];
    } CASES[] = {
        {one_is_dropped,
         1,
         NULL,
         {"has waited 1 s for an NCCL operation", "all_reduce sum of 3 F32 at 'dropped'",
          "ranks that did not: 2\n", "ranks that started it: 0 1 3\n"}},
        {one_does_not_connect,
         1,
         NULL,
         {"has waited 1 s for the connection for an NCCL operation", "all_to_all at 'first'",
          "ranks that did not: 1\n"}},
        {one_is_dropped_after_a_new_deadline,
         NEVER,
         NULL,
         {"has waited 1 s for an NCCL operation", "all_reduce sum of 3 F32 at 'dropped', operation 1",
          "ranks that did not: 2\n"}},
        {counts_differ, NEVER, NULL, {"NCCL reports an error on rank ", "all_reduce sum of", "at 'counts'"}},
        {one_does_not_launch, 1, NULL, {"has waited 1 s for a CUDA graph", GRAPH, "ranks that did not: 2\n"}},
        {all_launch, 1, "lost:1", {"has waited 1 s for a CUDA graph", GRAPH, "ranks that did not: none\n"}},
        {all_launch,
         NEVER,
         "error:1",
         {"NCCL reports an error on rank ", "planted fault in operation 1", GRAPH}},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        static Ending e;
        Program p = {.run = CASES[i].program};
        if (CASES[i].planted) setenv("HOST_NCCL_FAULT", CASES[i].planted, 1);
        end_of(over_nccl, &p, FAULT_RANKS, &(CommOptions){.deadline_s = CASES[i].deadline_s}, &e);
        unsetenv("HOST_NCCL_FAULT");
        assert_says(&e, "fault", CASES[i].says);
        assert_true(WIFEXITED(e.status) && WEXITSTATUS(e.status) == ERR_INFRA);
        assert_true(e.seconds < 5);
    }
}

TEST(an_error_of_a_gpu_names_the_rank) {
    static Ending e;
    Program p = {.run = all_launch, .breaks = true};
    end_of(over_nccl, &p, FAULT_RANKS, NULL, &e);
    assert_says(&e, "GPU", (const char *const[SAYS]){"[rank 2, op none] cudaErrorIllegalAddress"});
    assert_true(WIFSIGNALED(e.status) && WTERMSIG(e.status) == SIGABRT && e.seconds < 5);
}

/* ---- slow ranks ---- */

enum { SLOW = 2, QUEUED = 4 };

/* The other ranks queue further operations after the one that waits. Once the slow rank has arrived, it is
 * not late for these. */
static void one_is_slow(void *arg, Comm *c) {
    static const char *const SITES[QUEUED] = {"slow", "next", "third", "last"};
    float out[QUEUED][64];
    CommWork *work[QUEUED];
    (void)arg;
    small_run(c, small_call(c, COMM_ALL_REDUCE, "before"));
    for (int i = 0; i < QUEUED; i++) {
        if (comm_rank(c) == SLOW) usleep(i ? 150 * 1000 : 999 * 1000);
        CommCall call = small_call(c, COMM_ALL_REDUCE, SITES[i]);
        call.out = out[i];
        work[i] = comm_start(c, &call);
    }
    for (int i = 0; i < QUEUED; i++) comm_wait(c, work[i]);
    device_wait(world_device);
}

static void one_connects_slowly(void *arg, Comm *c) {
    (void)arg;
    int64_t counts[FAULT_RANKS];
    for (int i = 0; i < FAULT_RANKS; i++) counts[i] = 1;
    small_run(c, small_call(c, COMM_ALL_GATHER, "before"));
    device_wait(world_device);
    CommCall call = small_call(c, COMM_ALL_TO_ALL, "first");
    call.in_counts = call.out_counts = counts;
    if (comm_rank(c) == SLOW) sleep(1);
    small_run(c, call);
    device_wait(world_device);
}

static void one_opens_slowly(void *arg, Comm *c) {
    (void)arg;
    if (comm_rank(c) == SLOW) sleep(1);
    small_run(c, small_call(c, COMM_ALL_REDUCE, "opens"));
    device_wait(world_device);
}

static void one_launches_slowly(void *arg, Comm *c) {
    DeviceGraph *g = record_all_reduce(c);
    (void)arg;
    if (comm_rank(c) == SLOW) sleep(1);
    launch_graph(c, g);
    device_wait(world_device);
}

static void all_are_equally_slow(void *arg, Comm *c) {
    (void)arg;
    small_run(c, small_call(c, COMM_ALL_REDUCE, "before"));
    sleep(1);
    small_run(c, small_call(c, COMM_ALL_REDUCE, "after"));
    device_wait(world_device);
}

TEST(a_slow_rank_is_named_once) {
    static const struct {
        CommMain *program;
        const char *operation; /* the late operation, or NULL if there is none */
    } CASES[] = {{one_is_slow, "all_reduce sum of 3 F32 at 'slow', operation 1"},
                 {one_connects_slowly, "all_to_all at 'first', operation 1"},
                 {one_opens_slowly, "broadcast of 128 U8 at 'nccl_id', operation 2"},
                 {one_launches_slowly, "graph at 'the graph', operation 0"},
                 {all_are_equally_slow, NULL}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        static Ending e;
        char want[300] = "";
        if (CASES[i].operation)
            snprintf(want, sizeof want,
                     "COMM WARNING rank 0 has waited 0.5 s of at most 5 s in %s of ranks 0 1 2 3\n"
                     "  for ranks: 2\n",
                     CASES[i].operation);
        Program p = {.run = CASES[i].program};
        end_of(over_nccl, &p, FAULT_RANKS, &(CommOptions){.deadline_s = 5}, &e);
        assert_string_equal(e.text, want);
        assert_int_equal(e.status, 0);
    }
}

static void sizes_differ(void *arg, Comm *c) {
    enum { BYTES = 64 };
    const Group all = comm_everyone(c);
    void *memory = device_alloc(world_device, BYTES, "test");
    (void)arg;
    comm_register(c, &all, memory, comm_rank(c) == 2 ? BYTES / 2 : BYTES);
}

/* The sum is correct here, because the library of this test copies its input. NCCL would read the memory of
 * other members at this rank's offset. */
static void offsets_differ(void *arg, Comm *c) {
    enum { N = 4 };
    const Group all = comm_everyone(c);
    float *memory = device_alloc(world_device, 3 * N * sizeof *memory, "test");
    (void)arg;
    comm_register(c, &all, memory, 3 * N * sizeof *memory);
    comm_run(c, &(CommCall){.kind = COMM_ALL_REDUCE,
                            .dtype = F32,
                            .group = all,
                            .site = "windows",
                            .in = memory + (comm_rank(c) == 2 ? N : 0),
                            .out = memory + 2 * N,
                            .n = N,
                            .device = world_device});
    comm_compare_places(c);
}

TEST(different_offsets_in_windows_are_a_fault) {
    Ending e;
    Program p = {.run = offsets_differ, .registers = true};
    end_of(over_nccl, &p, FAULT_RANKS, NULL, &e);
    assert_non_null(strstr(e.text, "have used different offsets in memory that is registered"));
    assert_int_not_equal(e.status, 0);
}

TEST(windows_of_different_sizes_are_a_fault) {
    Ending e;
    Program p = {.run = sizes_differ, .registers = true};
    end_of(over_nccl, &p, FAULT_RANKS, NULL, &e);
    assert_non_null(strstr(e.text, "but other members of the group register 32 to 64"));
    assert_int_not_equal(e.status, 0);
}

/* ---- planned memory ---- */

/* The device memory that is planned for an all-to-all among ranks 0, stride, ... */
static int64_t mib_of_all_to_all(int members, int stride, int ranks_of_host) {
    Comm *c = comm_null(members * stride, 0);
    const Group g = {.size = members, .n_axes = 1, .axis_size = {members}, .axis_stride = {stride}};
    comm_plan(c, &(CommCall){.kind = COMM_ALL_GATHER, .dtype = F32, .group = g, .site = "plan"});
    const int64_t gather = (int64_t)comm_device_bytes(c, 0, ranks_of_host);
    comm_plan(c, &(CommCall){.kind = COMM_ALL_TO_ALL, .dtype = F32, .group = g, .site = "plan"});
    const int64_t more = (int64_t)comm_device_bytes(c, 0, ranks_of_host) - gather;
    comm_free(c);
    return more >> 20;
}

static int64_t mib_of_gather(int most_blocks) {
    Comm *c = comm_null(4, 0);
    const Group g = comm_everyone(c);
    assert_int_equal(comm_device_bytes(c, most_blocks, 8), 0);
    comm_plan(c, &(CommCall){.kind = COMM_ALL_GATHER, .dtype = F32, .group = g, .site = "plan"});
    const int64_t bytes = (int64_t)comm_device_bytes(c, most_blocks, 8);
    comm_free(c);
    return bytes >> 20;
}

/* The values were measured: "taken" minus "planned" in bench/results/gpu-layout-*.json of commit 4bae112. */
TEST(memory_of_communicators_is_the_measured_one) {
    static const int64_t MEASURED[][2] = {{0, 411}, {24, 411}, {20, 363}, {16, 228}, {10, 156}};
    for (size_t i = 0; i < sizeof MEASURED / sizeof *MEASURED; i++)
        assert_int_equal(mib_of_gather((int)MEASURED[i][0]) - mib_of_gather(0),
                         MEASURED[i][1] - MEASURED[0][1]);
    assert_int_equal(mib_of_all_to_all(4, 1, 8), 1206);
    assert_int_equal(mib_of_all_to_all(2, 7, 8), 402);
    assert_int_equal(mib_of_all_to_all(2, 8, 16), 402);
    assert_true(mib_of_all_to_all(2, 8, 8) < 402); /* the members are on different hosts */
}

/* ---- libraries that cannot be used ---- */

static void open_with(void *arg, Comm *c) {
    char text[200];
    Device *d = device_cpu(1);
    const char *const *words = arg;
    const Err e = comm_open_device(c, d, &(CommDeviceOptions){.library = words[0]}, text);
    CHECK(e.code == ERR_USER && strstr(e.msg, words[1]), "'%s' says nothing of '%s'", e.msg, words[1]);
    device_free(d);
}

static void open_without_windows(void *arg, Comm *c) {
    char text[200];
    Device *d = device_cpu(1);
    const Err e = comm_open_device(c, d, &(CommDeviceOptions){.library = HOST_NCCL, .registers = true}, text);
    CHECK(e.code == ERR_USER && strstr(e.msg, arg), "%s", e.msg);
    device_free(d);
}

TEST(a_library_without_windows_is_refused) {
    setenv("HOST_NCCL_VERSION", "22703", 1);
    comm_threads(2, NULL, open_without_windows,
                 "--use-nccl-ub needs NCCL 2.28 or later, but the loaded version is 2.27.3");
    unsetenv("HOST_NCCL_VERSION");
}

TEST(other_libraries_are_refused) {
    static const char *const CASES[][2] = {
        {"/nowhere/libnccl.so.2", "NCCL cannot be loaded: /nowhere/"},
        {"libm.so.6", "'libm.so.6' is not NCCL: the library has no function nccl"}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        comm_threads(2, NULL, open_with, (void *)CASES[i]);
}

/* Linked with --wrap=nccl_load: loads the NCCL stand-in for host memory, and claims that it works on GPU memory. */
static int gpu_version; /* version for GPU memory; 0 means that only host memory is used */
Err __real_nccl_load(const char *file, Nccl *);
Err __wrap_nccl_load(const char *file, Nccl *);
Err __wrap_nccl_load(const char *file, Nccl *n) {
    if (!gpu_version) return __real_nccl_load(file, n);
    const Err e = __real_nccl_load(HOST_NCCL, n);
    n->version = gpu_version, n->host_memory = false;
    return e;
}

/* All ranks report the same GPU, so NCCL must not be used. */
static void open_on_a_gpu(void *arg, Comm *c) {
    const char *const *words = arg;
    char text[200];
    Device *cpu = device_cpu(1), gpu = *cpu;
    DeviceBackend backend = *cpu->backend;
    backend.discrete = true, gpu.backend = &backend;
    c->processes_by = words[2];
    Err e = comm_open_device(c, &gpu, &(CommDeviceOptions){0}, text);
    CHECK(!e.code && !strcmp(text, words[0]), "%s%s", e.msg, text);
    e = comm_open_device(c, &gpu, &(CommDeviceOptions){.required = true}, text);
    CHECK(e.code == ERR_USER && strstr(e.msg, words[1]), "%s", e.msg);
    device_free(cpu);
}

static void open_without_peers(void *arg, Comm *c) {
    (void)arg;
    char text[200];
    Device *d = device_cpu(1);
    d->lacks_peers = comm_rank(c) == 1;
    const Err e = comm_open_device(c, d, &(CommDeviceOptions){.library = HOST_NCCL}, text);
    CHECK(!e.code && !strcmp(text, "NCCL 2.28.9, some GPUs have no peer access"), "%s%s", e.msg, text);
    comm_close_device(c);
    device_free(d);
}

TEST(gpus_without_peer_access_are_mentioned) { comm_threads(3, NULL, open_without_peers, NULL); }

TEST(an_old_library_needs_processes) {
    static const char *const OLD[] = {
        "through host memory, because NCCL 2.23.4 needs a process for each GPU: use mpirun or torchrun, or a "
        "newer NCCL",
        "NCCL cannot be used, because NCCL 2.23.4 needs a process for each GPU", NULL};
    static const char *const PROCESSES[] = {"through host memory, by TCP, because ranks 0 and 1 share a GPU",
                                            "NCCL cannot be used, because ranks 0 and 1 share a GPU", "TCP"};
    static const char *const NEW[] = {"through host memory, because ranks 0 and 1 share a GPU",
                                      "NCCL cannot be used, because ranks 0 and 1 share a GPU", NULL};
    gpu_version = 22304;
    comm_threads(2, NULL, open_on_a_gpu, (void *)OLD);
    comm_threads(2, NULL, open_on_a_gpu, (void *)PROCESSES);
    gpu_version = 22400;
    comm_threads(2, NULL, open_on_a_gpu, (void *)NEW);
    gpu_version = 0;
}

static void without_a_library_the_host_communicates(void *arg, Comm *c) {
    char text[200];
    (void)arg;
    world_device = device_cpu(1);
    const Err e = comm_open_device(c, world_device, &(CommDeviceOptions){.required = true}, text);
    CHECK(!e.code && !strcmp(text, "through host memory"), "%s%s", e.msg, text);
    run_order(NULL, c);
    comm_close_device(c);
    device_free(world_device);
    world_device = NULL;
}

TEST(no_library_is_needed) { comm_threads(3, NULL, without_a_library_the_host_communicates, NULL); }
