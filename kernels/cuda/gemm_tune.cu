/* The choice of a product's algorithm by measurement. Candidates run in turns, so that clocks and heat are
 * the same for all, over operands of random bits (the speed depends on them) that do not fit the L2 cache;
 * the median of the turns counts. Only an algorithm whose result has the bits of cuBLASLt's own first choice
 * can be taken: measuring decides about time alone, and a run has the same bits with and without it, on every
 * rank and after a restart. What the others would have gained stands in the store. */
#include "kernels/cuda/gemm_plan.cuh"

#include <algorithm>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TURNS = 5, RUNS_MIN = 3, RUNS_MAX = 50, SETS_MAX = 64, WAYS = 2 * GEMM_CANDIDATES };
static const size_t ROTATION = 128 << 20; /* bytes of operands: more than twice the L2 cache */
static const double WARM_MS = 30, TURN_MS = 0.5;
static const double WORTHWHILE = 0.99; /* of the first choice's time: less is noise */

typedef struct Bench {
    const GemmState *state;
    GemmPlan plan; /* a copy to try ways on */
    cudaStream_t stream;
    cudaEvent_t begin, end;
    size_t a, b, bias, c, set; /* bytes of each operand and of a set of them */
    size_t ones;               /* and of FP8's scales, all 1, the same for all sets */
    int sets, next;
    char *memory; /* the sets, behind them the first choice's result, the count of differing elements, the
                     ones */
} Bench;

typedef struct Candidate {
    GemmWay way;
    bool runs, same_bits;
    double ms[TURNS], median;
} Candidate;

/* ---- operands ---- */

static size_t padded(int64_t count, int dtype) {
    return ((size_t)count * dtype_size((DType)dtype) + SPACE_ALIGN - 1) / SPACE_ALIGN * SPACE_ALIGN;
}

static GemmOperands operands(const Bench *b, int set) {
    char *at = b->memory + (size_t)set * b->set;
    const char *one = b->memory + (size_t)b->sets * b->set + b->c + SPACE_ALIGN;
    GemmOperands x = {at, at + b->a, at + b->a + b->b, at + b->a + b->b + b->bias, one, one};
    return x;
}
static char *reference(const Bench *b) { return b->memory + (size_t)b->sets * b->set; }
static int *differing(const Bench *b) { return (int *)(reference(b) + b->c); }

/* The finalizer of splitmix64 (Steele, Lea, Flood 2014) over the element's index. */
__device__ __forceinline__ uint64_t mixed(uint64_t seed, int64_t i) {
    uint64_t z = seed + (uint64_t)i * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Uniform in [-1, 1). */
static __global__ void randomise(Cells x, int64_t n, uint64_t seed) {
    GRID_LOOP(i, n) x.put(i, (float)(mixed(seed, i) >> 40) * 0x1p-23f - 1.0f);
}

/* Codes of FP8 numbers, none of them very large and none a NaN. */
static __global__ void randomise_codes(uint8_t *x, int64_t n, uint64_t seed) {
    GRID_LOOP(i, n) {
        const uint64_t z = mixed(seed, i);
        x[i] = (uint8_t)((z >> 56 & 0x80) | (0x24 + (z >> 40) % 32));
    }
}

static __global__ void fill_ones(float *x, int64_t n) { GRID_LOOP(i, n) x[i] = 1; }

static __global__ void count_differing(const uint16_t *x, const uint16_t *y, int64_t n, int *count) {
    GRID_LOOP(i, n) {
        if (x[i] != y[i]) *count = 1;
    }
}

static void fill(const Bench *b, const void *at, size_t bytes, int dtype, uint64_t seed) {
    const Cells x = {(void *)at, dtype};
    const int64_t n = (int64_t)(bytes / dtype_size((DType)dtype));
    if (bytes && dtype_is_fp8((DType)dtype))
        randomise_codes<<<1024, 256, 0, b->stream>>>((uint8_t *)at, n, seed);
    else if (bytes)
        randomise<<<1024, 256, 0, b->stream>>>(x, n, seed);
    LAUNCHED();
}

static void fill_set(const Bench *b, int set) {
    const GemmKey *key = &b->plan.key;
    const GemmOperands x = operands(b, set);
    fill(b, x.a, b->a, key->type, 4 * (uint64_t)set);
    fill(b, x.b, b->b, key->b_type, 4 * (uint64_t)set + 1);
    fill(b, x.bias, b->bias, key->c_type, 4 * (uint64_t)set + 2);
    fill(b, x.c, b->c, key->c_type, 4 * (uint64_t)set + 3);
}

static int64_t most_scales(const GemmKey *key) {
    const Fp8Blocks a = (Fp8Blocks)(key->scaling >> 1 & 3), b = (Fp8Blocks)(key->scaling >> 3);
    return std::max(fp8_blocks_count(a, key->m, key->k), fp8_blocks_count(b, key->n, key->k));
}

/* Fewer sets where there is little memory; false: there is not enough for one. */
static bool open(Bench *b, const Device *d, const GemmState *s, const GemmPlan *p) {
    const GemmKey *key = &p->key;
    memset(b, 0, sizeof *b);
    b->state = s, b->plan = *p, b->stream = d->cuda->stream;
    b->a = padded(key->m * key->k, key->type);
    b->b = padded(key->k * key->n, key->b_type);
    b->bias = key->epilogue == GEMM_BIAS ? padded(key->n, key->c_type) : 0;
    b->c = padded(key->m * key->n, key->c_type);
    b->set = b->a + b->b + b->bias + b->c;
    b->ones = dtype_is_fp8((DType)key->type) ? padded(most_scales(key), F32) : 0;
    b->sets = (int)std::min<size_t>(ROTATION / b->set + 1, SETS_MAX);
    while (cudaMalloc(&b->memory, (size_t)b->sets * b->set + b->c + SPACE_ALIGN + b->ones) != cudaSuccess) {
        cudaGetLastError(); /* it has been looked at */
        if (b->sets == 1) return false;
        b->sets /= 2;
    }
    for (int i = 0; i < b->sets; i++) fill_set(b, i);
    if (b->ones) {
        fill_ones<<<256, 256, 0, b->stream>>>((float *)operands(b, 0).a_inverse,
                                              (int64_t)(b->ones / sizeof(float)));
        LAUNCHED();
    }
    CUDA_CHECK(cudaEventCreate(&b->begin));
    CUDA_CHECK(cudaEventCreate(&b->end));
    return true;
}

static void close(Bench *b) {
    CUDA_CHECK(cudaStreamSynchronize(b->stream));
    CUDA_CHECK(cudaEventDestroy(b->begin));
    CUDA_CHECK(cudaEventDestroy(b->end));
    CUDA_CHECK(cudaFree(b->memory));
}

/* ---- runs ---- */

/* Milliseconds of each of `runs`; negative: this way does not run. */
static double run(Bench *b, int runs) {
    float ms;
    bool started = true;
    CUDA_CHECK(cudaEventRecord(b->begin, b->stream));
    for (int i = 0; i < runs && started; i++) {
        const GemmOperands x = operands(b, b->next++ % b->sets);
        started = gemm_start(b->state, &b->plan, &x, b->stream) == CUBLAS_STATUS_SUCCESS;
    }
    CUDA_CHECK(cudaEventRecord(b->end, b->stream));
    CUDA_CHECK(cudaEventSynchronize(b->end));
    CUDA_CHECK(cudaEventElapsedTime(&ms, b->begin, b->end));
    return started ? ms / runs : -1;
}

static void go(Bench *b, const GemmWay *way) {
    gemm_describe(&b->plan, way->fused);
    b->plan.way = *way;
}

/* Whether c of the first set is the reference's, twice; the first candidate's becomes the reference. */
static void compare(Bench *b, Candidate *x, bool first) {
    const GemmKey *key = &b->plan.key;
    const GemmOperands set = operands(b, 0);
    const size_t bytes = (size_t)(key->m * key->n) * dtype_size((DType)key->c_type);
    int different = 0;
    go(b, &x->way);
    CUDA_CHECK(cudaMemsetAsync(differing(b), 0, sizeof(int), b->stream));
    x->runs = true;
    for (int i = 0; i < 2 && x->runs; i++) {
        fill_set(b, 0);
        x->runs = gemm_start(b->state, &b->plan, &set, b->stream) == CUBLAS_STATUS_SUCCESS;
        if (first && i == 0)
            CUDA_CHECK(cudaMemcpyAsync(reference(b), set.c, bytes, cudaMemcpyDeviceToDevice, b->stream));
        count_differing<<<1024, 256, 0, b->stream>>>((const uint16_t *)set.c, (const uint16_t *)reference(b),
                                                     (int64_t)(bytes / 2), differing(b));
        LAUNCHED();
    }
    CUDA_CHECK(
        cudaMemcpyAsync(&different, differing(b), sizeof different, cudaMemcpyDeviceToHost, b->stream));
    CUDA_CHECK(cudaStreamSynchronize(b->stream));
    x->same_bits = x->runs && !different;
}

static void measure(Bench *b, Candidate *all, int n) {
    double warm = 0;
    go(b, &all[0].way);
    double once = run(b, RUNS_MIN);
    while (once > 0 && warm < WARM_MS) warm += RUNS_MIN * (once = run(b, RUNS_MIN));
    for (int turn = 0; turn < TURNS; turn++)
        for (int i = 0; i < n; i++) {
            const int runs =
                std::max<int>(RUNS_MIN, std::min<int>(RUNS_MAX, (int)(TURN_MS / fmax(once, 1e-4))));
            if (!all[i].runs) continue;
            go(b, &all[i].way);
            all[i].ms[turn] = run(b, runs);
            all[i].runs = all[i].ms[turn] >= 0;
        }
    for (int i = 0; i < n; i++) {
        std::sort(all[i].ms, all[i].ms + TURNS);
        all[i].median = all[i].ms[TURNS / 2];
    }
}

/* ---- choice ---- */

/* The first is what an unmeasured product takes. */
static int gather(const GemmState *s, GemmPlan *p, Candidate all[WAYS]) {
    GemmWay ways[WAYS];
    int n = gemm_ways(s, p, true, ways);
    if (p->key.epilogue == GEMM_BIAS) n += gemm_ways(s, p, false, ways + n);
    memset(all, 0, WAYS * sizeof *all);
    for (int i = 0; i < n; i++) all[i].way = ways[i];
    return n;
}

static GemmRecord choose(const GemmKey *key, const Candidate *all, int n) {
    const Candidate *best = &all[0];
    double fastest = all[0].median;
    for (int i = 1; i < n; i++) {
        if (!all[i].runs) continue;
        fastest = std::min(fastest, all[i].median);
        if (all[i].same_bits && all[i].median < best->median) best = &all[i];
    }
    if (best->median > WORTHWHILE * all[0].median) best = &all[0];
    GemmRecord r = {*key, best->way, 1e3 * best->median, 1e3 * all[0].median, 1e3 * fastest};
    return r;
}

static bool tune(const Device *d, const GemmState *s, GemmPlan *p, GemmRecord *out) {
    Bench b;
    Candidate all[WAYS];
    const int n = gather(s, p, all);
    if (n < 2 || !open(&b, d, s, p)) return false;
    for (int i = 0; i < n; i++) compare(&b, &all[i], i == 0);
    if (all[0].runs) measure(&b, all, n);
    close(&b);
    if (!all[0].runs) return false;
    *out = choose(&p->key, all, n);
    return true;
}

void gemm_tune(const Device *d, GemmState *s, GemmPlan *p) {
    const GemmWay first = p->way;
    GemmStore store = gemm_store_open(d->cuda, s);
    GemmRecord r;
    if (gemm_store_find(&store, &p->key, &r) && gemm_can(s, p, &r.way)) {
        p->way = r.way;
    } else if (tune(d, s, p, &r)) {
        p->way = r.way;
        gemm_store_add(&store, s, &r);
    } else {
        p->way = first;
    }
    gemm_describe(p, p->way.fused);
    gemm_store_close(&store);
}
