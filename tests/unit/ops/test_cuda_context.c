/* Tests a ring of context parallelism on GPUs: cuDNN must compute all steps of causal attention in 16 bits,
 * and the results must agree with one rank on the CPU. Ranks are threads, which share GPUs if there are not
 * enough. Skipped without a GPU. */
#include "unit/gpu_main.h"

#include <stdio.h>

#include "kernels/cuda/attention/attention_path.h"
#include "unit/ops/ring_run.h"

enum { MOST_RANKS = 4 };

typedef struct World {
    DType dtype;
    RingResults results;
    RingPaths paths[MOST_RANKS];
    AttentionCounts counts[MOST_RANKS];
} World;

static void run_rank(void *arg, Comm *comm) {
    World *w = arg;
    const int ranks = comm_world(comm), rank = comm_rank(comm);
    Device *d;
    char text[200];
    Err e = device_open(&(DeviceSpec){.kind = DEVICE_CUDA, .rank = rank, .threads = 1}, &d);
    CHECK(!e.code, "rank %d: %s", rank, e.msg);
    e = comm_open_device(comm, d, &(CommDeviceOptions){.required = false}, text);
    CHECK(!e.code, "rank %d: %s", rank, e.msg);
    w->paths[rank] = ring_plan(d, ranks, rank, w->dtype);
    device_reserve_scratch(d, w->paths[rank].scratch);
    ring_run(&(RingRank){
        .device = d, .comm = comm, .ranks = ranks, .rank = rank, .dtype = w->dtype, .results = &w->results});
    w->counts[rank] = attention_counts(d);
    comm_close_device(comm);
    device_free(d);
}

/* Whether the reason for not using cuDNN is accepted: the GPU is not an sm_90, or cuDNN is too old. */
static bool is_known(const char *path) {
    return strstr(path, "only on sm_90") || strstr(path, "cuDNN is older");
}

static void check_paths(const World *w, int ranks) {
    for (int i = 0; i < ranks; i++) {
        const RingPaths *p = &w->paths[i];
        assert_int_equal(p->calls, 2 * ranks);
        assert_int_equal(w->counts[i].cudnn + w->counts[i].own, p->calls);
        if (is_known(p->other)) {
            print_message("left out: %s\n", p->other);
        } else {
            if (*p->other) fail_msg("rank %d of %d, %s", i, ranks, p->other);
            assert_int_equal(w->counts[i].own, 0);
        }
    }
}

/* Checks |got - want| / |want|. Results, partial results, probabilities and their gradients are each rounded
 * to the storage type once, with a total error of about one unit. */
static void check_results(const RingResults *got, const RingResults *want, DType dtype) {
    for (int i = 0; i < RING_RESULTS; i++) {
        double error = 0, size = 0;
        for (size_t e = 0, n = ring_count(RING_S, RING_R); e < n; e++) {
            const double x = got->x[i][e], y = want->x[i][e];
            error += (x - y) * (x - y), size += y * y;
        }
        error = sqrt(error / size);
        print_message("%s, %s: error %.2g\n", dtype_name(dtype), RING_NAMES[i], error);
        if (!(error <= 2 * dtype_roundoff(dtype))) fail_msg("%s differs", RING_NAMES[i]);
    }
}

TEST(is_one_rank) {
    Device *cpu = device_cpu(-1);
    RingResults want = ring_results_new();
    ring_run(&(RingRank){.device = cpu, .ranks = 1, .dtype = F64, .results = &want});
    for (DType type = BF16; type <= F16; type++)
        for (int ranks = 2; ranks <= MOST_RANKS; ranks *= 2) {
            World w = {.dtype = type, .results = ring_results_new()};
            comm_threads(ranks, NULL, run_rank, &w);
            check_paths(&w, ranks);
            check_results(&w.results, &want, type);
            ring_results_free(&w.results);
        }
    ring_results_free(&want);
    device_free(cpu);
}
