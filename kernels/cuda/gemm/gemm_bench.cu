/* Implements gemm_bench.cuh. Operands are random, because the speed of a GEMM depends on the operands' bits.
 * Together, the sets of operands are larger than the L2 cache. */
#include "kernels/cuda/gemm/gemm_bench.cuh"

#include <algorithm>
#include <string.h>

enum { SETS_MAX = 64 };
/* total size of all operand sets in bytes: more than twice the L2 cache */
static const size_t ROTATION = 128 << 20;

/* The results come last, so that they are contiguous in memory. */
enum { A, B, BIAS, PRE, C, ACT, DBIAS, OPERANDS };
static_assert((int)OPERANDS == (int)GEMM_OPERANDS, "every operand of a Gemm has a tensor");

/* ---- operands ---- */

/* Applies the finalizer of splitmix64 (Steele, Lea, Flood 2014). */
__device__ __forceinline__ uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

__device__ __forceinline__ uint64_t random_bits(uint64_t seed, int64_t i) {
    return mix(seed + (uint64_t)i * 0x9e3779b97f4a7c15u);
}

/* Fills x with random numbers, uniformly distributed in [-1, 1). */
static __global__ void randomise(Cells x, int64_t n, uint64_t seed) {
    GRID_LOOP(i, n) x.put(i, (float)(random_bits(seed, i) >> 40) * 0x1p-23f - 1.0f);
}

/* Fills x with FP8 values, except NaN and very large values. */
static __global__ void randomise_fp8(uint8_t *x, int64_t n, uint64_t seed) {
    GRID_LOOP(i, n) {
        const uint64_t z = random_bits(seed, i);
        x[i] = (uint8_t)((z >> 56 & 0x80) | (0x24 + (z >> 40) % 32));
    }
}

static __global__ void fill_ones(float *x, int64_t n) { GRID_LOOP(i, n) x[i] = 1; }

/* Adds a fingerprint of x to *sum. The fingerprint is a sum of integers, which does not depend on the order of
 * summation. */
static __global__ void fingerprint(const uint16_t *x, int64_t n, unsigned long long *sum) {
    unsigned long long own = 0;
    GRID_LOOP(i, n) own += mix((uint64_t)i << 16 | x[i]);
    atomicAdd(sum, own);
}

static unsigned long long *fingerprint_at(const GemmBench *b) {
    return (unsigned long long *)(b->memory + (size_t)b->sets * b->set);
}

/* Makes the GEMM use operand set number `set`. */
static void take_set(GemmBench *b, int set) {
    char *at = b->memory + (size_t)set * b->set;
    for (int i = 0; i < OPERANDS; at += b->bytes[i++]) b->operand[i].data = at;
}

/* Fills an operand and its padding, because the fingerprint includes the padding. */
static void fill(const GemmBench *b, int which, uint64_t seed) {
    const Tensor *x = &b->operand[which];
    const int64_t n = (int64_t)(b->bytes[which] / dtype_size((DType)x->dtype));
    if (dtype_is_fp8((DType)x->dtype))
        randomise_fp8<<<1024, 256, 0, b->stream>>>((uint8_t *)x->data, n, seed);
    else
        randomise<<<1024, 256, 0, b->stream>>>(cells(x), n, seed);
    LAUNCHED();
}

static void fill_set(GemmBench *b, int set) {
    take_set(b, set);
    for (int i = 0; i < OPERANDS; i++)
        if (b->bytes[i]) fill(b, i, (uint64_t)(OPERANDS * set + i));
}

/* Sets all FP8 scales to 1. */
static void fill_scales(GemmBench *b) {
    float *at = (float *)((char *)fingerprint_at(b) + SPACE_ALIGN);
    if (!b->scales) return;
    fill_ones<<<256, 256, 0, b->stream>>>(at, b->scales);
    LAUNCHED();
    b->gemm.a_inverse = b->gemm.b_inverse = at;
}

static void copy_operands(GemmBench *b, const Gemm *g) {
    const Tensor *from[OPERANDS] = {g->a, g->b, g->bias, g->pre, g->c, g->act, g->dbias};
    const Tensor **to[OPERANDS] = {&b->gemm.a, &b->gemm.b,   &b->gemm.bias, &b->gemm.pre,
                                   &b->gemm.c, &b->gemm.act, &b->gemm.dbias};
    b->gemm = *g;
    if (dtype_is_fp8((DType)g->a->dtype))
        b->scales =
            std::max(fp8_blocks_count(g->a_blocks, g->m, g->k), fp8_blocks_count(g->b_blocks, g->n, g->k));
    for (int i = 0; i < OPERANDS; i++) {
        if (!from[i]) continue;
        b->operand[i] = *from[i];
        *to[i] = &b->operand[i];
        b->bytes[i] = (tensor_bytes(from[i]) + SPACE_ALIGN - 1) / SPACE_ALIGN * SPACE_ALIGN;
        b->set += b->bytes[i];
        if (i >= C) b->results += b->bytes[i];
    }
}

bool gemm_bench_open(GemmBench *b, const Device *d, const GemmState *s, const GemmPlan *p, const Gemm *g) {
    memset(b, 0, sizeof *b);
    b->call.device = (Device *)d;
    b->state = s, b->plan = *p, b->stream = cuda_of(d)->stream;
    copy_operands(b, g);
    b->sets = (int)std::min<size_t>(ROTATION / b->set + 1, SETS_MAX);
    const size_t behind = SPACE_ALIGN + (size_t)b->scales * sizeof(float);
    while (cudaMalloc(&b->memory, (size_t)b->sets * b->set + behind) != cudaSuccess) {
        cudaGetLastError(); /* clears the error, which is handled here */
        if (b->sets == 1) return false;
        b->sets /= 2;
    }
    for (int i = 0; i < b->sets; i++) fill_set(b, i);
    fill_scales(b);
    CUDA_CHECK(cudaEventCreate(&b->begin));
    CUDA_CHECK(cudaEventCreate(&b->end));
    return true;
}

void gemm_bench_close(GemmBench *b) {
    CUDA_CHECK(cudaStreamSynchronize(b->stream));
    CUDA_CHECK(cudaEventDestroy(b->begin));
    CUDA_CHECK(cudaEventDestroy(b->end));
    CUDA_CHECK(cudaFree(b->memory));
}

/* ---- runs ---- */

static bool start(GemmBench *b) {
    return gemm_start(&b->call, b->state, &b->plan, &b->gemm) == CUBLAS_STATUS_SUCCESS;
}

static bool start_some(GemmBench *b, int n) {
    bool started = true;
    for (int i = 0; i < n && started; i++) {
        take_set(b, b->next++ % b->sets);
        started = start(b);
    }
    return started;
}

double gemm_bench_run(GemmBench *b, int before, int runs) {
    float ms;
    bool started = start_some(b, before);
    CUDA_CHECK(cudaEventRecord(b->begin, b->stream));
    started = started && start_some(b, runs);
    CUDA_CHECK(cudaEventRecord(b->end, b->stream));
    CUDA_CHECK(cudaEventSynchronize(b->end));
    CUDA_CHECK(cudaEventElapsedTime(&ms, b->begin, b->end));
    return started ? ms / runs : -1;
}

void gemm_bench_take(GemmBench *b, const GemmAlgo *algo) {
    gemm_describe(&b->plan, algo->fused);
    b->plan.algo = *algo;
}

bool gemm_bench_print(GemmBench *b, unsigned long long *out) {
    unsigned long long *sum = fingerprint_at(b);
    fill_set(b, 0);
    if (!start(b)) return false;
    CUDA_CHECK(cudaMemsetAsync(sum, 0, sizeof *sum, b->stream));
    fingerprint<<<1024, 256, 0, b->stream>>>((const uint16_t *)b->operand[C].data, (int64_t)(b->results / 2),
                                             sum);
    LAUNCHED();
    CUDA_CHECK(cudaMemcpyAsync(out, sum, sizeof *out, cudaMemcpyDeviceToHost, b->stream));
    CUDA_CHECK(cudaStreamSynchronize(b->stream));
    return true;
}
