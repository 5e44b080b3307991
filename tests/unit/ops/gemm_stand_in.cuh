/* A mock of cuBLASLt and gemm_bench without a GPU. For each algorithm, it has the time in a short run and in
 * a sustained run. It supports only one GEMM. Choices are stored in a temporary folder. */
#pragma once

#include "kernels/cuda/gemm/gemm_bench.cuh"

#include <math.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include "base/file.h"
#include "unit/cmocka_all.h"
#include "unit/temp_dir.h"
}

/* ---- the stand-in ---- */

typedef struct Timing {
    double burst, sustained; /* in milliseconds; negative if the algorithm fails */
    bool other_bits;
    double later[3]; /* sustained time in later blocks; 0 means as in the first */
} Timing;

static struct {
    const Timing *algos;
    int n, at, blocks[GEMM_ALGOS];
    int lost;       /* number of an algorithm that the library no longer has, or 0 if there is none */
    bool no_memory; /* whether there is no memory for measurements */
    double ms;      /* time that the GPU has been busy */
} gpu;

static const double LOAD_MS = 15; /* a run that is longer than this is sustained */

int gemm_all_algos(const GemmState *, GemmPlan *, GemmAlgo out[GEMM_ALGOS]) {
    int n = 0;
    memset(out, 0, GEMM_ALGOS * sizeof *out);
    for (int i = 0; i < gpu.n; i++)
        if (!i || i != gpu.lost) out[n++].lt.data[0] = (uint64_t)i;
    return n;
}

bool gemm_can(const GemmState *, GemmPlan *, const GemmAlgo *algo) {
    return !gpu.lost || algo->lt.data[0] != (uint64_t)gpu.lost;
}

void gemm_describe(GemmPlan *, unsigned) {}

bool gemm_bench_open(GemmBench *, const Device *, const GemmState *, const GemmPlan *, const Gemm *) {
    return !gpu.no_memory;
}

void gemm_bench_close(GemmBench *) {}

void gemm_bench_take(GemmBench *, const GemmAlgo *algo) { gpu.at = (int)algo->lt.data[0]; }

double gemm_bench_run(GemmBench *, int before, int runs) {
    const Timing *w = &gpu.algos[gpu.at];
    const bool load = (before + runs) * w->burst > LOAD_MS;
    const int block = load && before ? gpu.blocks[gpu.at]++ : 0;
    const double each = block && w->later[block - 1] ? w->later[block - 1] : load ? w->sustained : w->burst;
    gpu.ms += (before + runs) * fabs(each);
    return each;
}

bool gemm_bench_print(GemmBench *, unsigned long long *out) {
    *out = gpu.algos[gpu.at].other_bits ? 1 + (unsigned long long)gpu.at : 0;
    return true;
}

/* ---- a GEMM ---- */

typedef struct Run {
    char folder[64];
    Cuda cuda;
    Device device;
    GemmState state;
    GemmKey key;
    int first; /* the algorithm of the initial plan */
} Run;

static Run run_new(void) {
    Run r;
    memset(&r, 0, sizeof r), memset(&gpu, 0, sizeof gpu);
    temp_dir(r.folder);
    setenv("ISOTRON_CACHE_DIR", r.folder, 1);
    strcpy(r.cuda.name, "GPU");
    r.key.m = 4096;
    return r;
}

static void run_end(const Run *r) {
    unsetenv("ISOTRON_CACHE_DIR");
    assert_int_equal(file_remove_tree(r->folder).code, 0);
}

static int choose(Run *r, GemmTuning by) {
    GemmPlan p;
    Gemm g = {};
    memset(&p, 0, sizeof p);
    p.key = r->key, p.algo.lt.data[0] = (uint64_t)r->first, g.op = "linear";
    r->device.kind = DEVICE_CUDA, r->device.state = &r->cuda, r->cuda.gemm_tuning = by;
    gpu.ms = 0;
    memset(gpu.blocks, 0, sizeof gpu.blocks);
    gemm_tune(&r->device, &r->state, &p, &g);
    return (int)p.algo.lt.data[0];
}

/* Whether the store has a record of the GEMM. */
static bool is_kept(Run *r, GemmRecord *out) {
    GemmStore s = gemm_store_open(&r->cuda, &r->state);
    const bool found = gemm_store_find(&s, &r->key, out);
    gemm_store_close(&s);
    return found;
}
