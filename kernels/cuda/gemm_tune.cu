/* The choice of a product's way by measurement. Candidates run in turns, so that clocks and heat are the same
 * for all, over operands of random bits (the speed depends on them) that do not fit the L2 cache, each with
 * the passes that its epilogues take if they are not fused; the median of the turns counts. Two choices are
 * made and kept: the fastest of those whose results have the bits of what an unmeasured product takes, so
 * that measuring decides about time alone and a run has the same bits with and without it, on every rank and
 * after a restart; and the fastest of all (--gemm-tuning), which is the same for all who share the store. */
#include "kernels/cuda/gemm_plan.cuh"

#include <algorithm>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TURNS = 5, RUNS_MIN = 3, RUNS_MAX = 50, SETS_MAX = 64 };
static const size_t ROTATION = 128 << 20; /* bytes of operands: more than twice the L2 cache */
static const double WARM_MS = 30, TURN_MS = 0.5;
static const double WORTHWHILE = 0.99; /* of the first candidate's time: less is noise */
static const double HOPELESS = 1.2;    /* of the first candidate's time, in the first turn */

/* Results last: they are written in one piece of memory. */
enum { A, B, BIAS, C, ACT, DBIAS, OPERANDS };

typedef struct Bench {
    Call call; /* where it runs */
    const GemmState *state;
    GemmPlan plan; /* a copy to try ways on */
    Gemm product;  /* of the tensors below */
    Tensor operand[OPERANDS];
    size_t bytes[OPERANDS], results, set; /* of each operand, padded; of the results; of a set of them all */
    int64_t scales;                       /* of FP8's; the same for all sets */
    cudaStream_t stream;
    cudaEvent_t begin, end;
    int sets, next;
    char *memory; /* the sets, behind them the fingerprint of results and the scales */
} Bench;

typedef struct Candidate {
    GemmWay way;
    bool runs, same_bits;
    double ms[TURNS], median;
} Candidate;

/* ---- operands ---- */

/* The finalizer of splitmix64 (Steele, Lea, Flood 2014). */
__device__ __forceinline__ uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

__device__ __forceinline__ uint64_t random_bits(uint64_t seed, int64_t i) {
    return mix(seed + (uint64_t)i * 0x9e3779b97f4a7c15u);
}

/* Uniform in [-1, 1). */
static __global__ void randomise(Cells x, int64_t n, uint64_t seed) {
    GRID_LOOP(i, n) x.put(i, (float)(random_bits(seed, i) >> 40) * 0x1p-23f - 1.0f);
}

/* Codes of FP8 numbers, none of them very large and none a NaN. */
static __global__ void randomise_codes(uint8_t *x, int64_t n, uint64_t seed) {
    GRID_LOOP(i, n) {
        const uint64_t z = random_bits(seed, i);
        x[i] = (uint8_t)((z >> 56 & 0x80) | (0x24 + (z >> 40) % 32));
    }
}

static __global__ void fill_ones(float *x, int64_t n) { GRID_LOOP(i, n) x[i] = 1; }

/* A sum of whole numbers, the same in any order. */
static __global__ void fingerprint(const uint16_t *x, int64_t n, unsigned long long *sum) {
    unsigned long long own = 0;
    GRID_LOOP(i, n) own += mix((uint64_t)i << 16 | x[i]);
    atomicAdd(sum, own);
}

static unsigned long long *fingerprint_at(const Bench *b) {
    return (unsigned long long *)(b->memory + (size_t)b->sets * b->set);
}

/* The product is of this set from now on. */
static void take_set(Bench *b, int set) {
    char *at = b->memory + (size_t)set * b->set;
    for (int i = 0; i < OPERANDS; at += b->bytes[i++]) b->operand[i].data = at;
}

/* The padding too, which is in the fingerprint. */
static void fill(const Bench *b, int which, uint64_t seed) {
    const Tensor *x = &b->operand[which];
    const int64_t n = (int64_t)(b->bytes[which] / dtype_size((DType)x->dtype));
    if (dtype_is_fp8((DType)x->dtype))
        randomise_codes<<<1024, 256, 0, b->stream>>>((uint8_t *)x->data, n, seed);
    else
        randomise<<<1024, 256, 0, b->stream>>>(cells(x), n, seed);
    LAUNCHED();
}

static void fill_set(Bench *b, int set) {
    take_set(b, set);
    for (int i = 0; i < OPERANDS; i++)
        if (b->bytes[i]) fill(b, i, (uint64_t)(OPERANDS * set + i));
}

/* FP8's scales are all 1. */
static void fill_scales(Bench *b) {
    float *at = (float *)((char *)fingerprint_at(b) + SPACE_ALIGN);
    if (!b->scales) return;
    fill_ones<<<256, 256, 0, b->stream>>>(at, b->scales);
    LAUNCHED();
    b->product.a_inverse = b->product.b_inverse = at;
}

static void copy_operands(Bench *b, const Gemm *g) {
    const Tensor *from[OPERANDS] = {g->a, g->b, g->bias, g->c, g->act, g->dbias};
    const Tensor **to[OPERANDS] = {&b->product.a, &b->product.b,   &b->product.bias,
                                   &b->product.c, &b->product.act, &b->product.dbias};
    b->product = *g;
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

/* Fewer sets where there is little memory; false: there is not enough for one. */
static bool open(Bench *b, const Device *d, const GemmState *s, const GemmPlan *p, const Gemm *g) {
    memset(b, 0, sizeof *b);
    b->call.device = (Device *)d;
    b->state = s, b->plan = *p, b->stream = d->cuda->stream;
    copy_operands(b, g);
    b->sets = (int)std::min<size_t>(ROTATION / b->set + 1, SETS_MAX);
    const size_t behind = SPACE_ALIGN + (size_t)b->scales * sizeof(float);
    while (cudaMalloc(&b->memory, (size_t)b->sets * b->set + behind) != cudaSuccess) {
        cudaGetLastError(); /* it has been looked at */
        if (b->sets == 1) return false;
        b->sets /= 2;
    }
    for (int i = 0; i < b->sets; i++) fill_set(b, i);
    fill_scales(b);
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

static bool start(Bench *b) {
    return gemm_start(&b->call, b->state, &b->plan, &b->product) == CUBLAS_STATUS_SUCCESS;
}

/* Milliseconds of each of `runs`; negative: this way does not run. */
static double run(Bench *b, int runs) {
    float ms;
    bool started = true;
    CUDA_CHECK(cudaEventRecord(b->begin, b->stream));
    for (int i = 0; i < runs && started; i++) {
        take_set(b, b->next++ % b->sets);
        started = start(b);
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

/* Of the results over the first set; false: this way does not run. */
static bool print_of(Bench *b, unsigned long long *out) {
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

/* One that gives other bits the second time does not count as running. */
static void try_all(Bench *b, Candidate *all, int n) {
    unsigned long long first = 0, one, two;
    for (int i = 0; i < n; i++) {
        go(b, &all[i].way);
        all[i].runs = print_of(b, &one) && print_of(b, &two) && one == two;
        if (i == 0) first = one;
        all[i].same_bits = all[i].runs && one == first;
    }
}

static void turn(Bench *b, Candidate *all, int n, int number) {
    for (int i = 0; i < n; i++) {
        if (!all[i].runs) continue;
        go(b, &all[i].way);
        const double once = number ? all[i].ms[0] : run(b, RUNS_MIN);
        const int runs = std::max<int>(RUNS_MIN, std::min<int>(RUNS_MAX, (int)(TURN_MS / fmax(once, 1e-4))));
        all[i].ms[number] = run(b, runs);
        all[i].runs = all[i].ms[number] >= 0;
    }
}

static void measure(Bench *b, Candidate *all, int n) {
    double warm = 0, once = 1;
    go(b, &all[0].way);
    for (; once > 0 && warm < WARM_MS; warm += RUNS_MIN * once) once = run(b, RUNS_MIN);
    for (int number = 0; number < TURNS; number++) {
        turn(b, all, n, number);
        for (int i = 1; i < n && !number; i++) all[i].runs &= all[i].ms[0] < HOPELESS * all[0].ms[0];
    }
    for (int i = 0; i < n; i++) {
        std::sort(all[i].ms, all[i].ms + TURNS);
        all[i].median = all[i].ms[TURNS / 2];
    }
}

/* ---- choice ---- */

/* The first is what an unmeasured product takes. */
static int gather(const GemmState *s, GemmPlan *p, Candidate all[GEMM_WAYS]) {
    GemmWay ways[GEMM_WAYS];
    const int n = gemm_all_ways(s, p, ways);
    memset(all, 0, GEMM_WAYS * sizeof *all);
    for (int i = 0; i < n; i++) all[i].way = ways[i];
    return n;
}

static GemmChoice best_of(const Candidate *all, int n, bool any_bits) {
    const Candidate *best = &all[0];
    for (int i = 1; i < n; i++)
        if (all[i].runs && (any_bits || all[i].same_bits) && all[i].median < best->median) best = &all[i];
    if (best->median > WORTHWHILE * all[0].median) best = &all[0];
    GemmChoice c = {best->way, 1e3 * best->median};
    return c;
}

static bool tune(const Device *d, const GemmState *s, GemmPlan *p, const Gemm *g, GemmRecord *out) {
    Bench b;
    Candidate all[GEMM_WAYS];
    const int n = gather(s, p, all);
    if (n < 2 || !open(&b, d, s, p, g)) return false;
    try_all(&b, all, n);
    if (all[0].runs) measure(&b, all, n);
    close(&b);
    if (!all[0].runs) return false;
    out->key = p->key;
    out->first_us = 1e3 * all[0].median;
    out->choice[GEMM_TUNING_SAME_BITS] = best_of(all, n, false);
    out->choice[GEMM_TUNING_FASTEST] = best_of(all, n, true);
    return true;
}

/* So that nobody goes another way who has the memory to measure. */
static const GemmRecord *unmeasured(const GemmPlan *p, GemmRecord *r) {
    memset(r, 0, sizeof *r);
    r->key = p->key;
    for (int i = 0; i < GEMM_CHOICES; i++) r->choice[i].way = p->way;
    return r;
}

void gemm_tune(const Device *d, GemmState *s, GemmPlan *p, const Gemm *g) {
    const GemmTuning by = d->gemm_tuning;
    const GemmWay first = p->way;
    GemmStore store = gemm_store_open(d->cuda, s);
    GemmRecord r;
    bool kept = store.alone;
    if (gemm_store_find(&store, &p->key, &r) && gemm_can(s, p, &r.choice[by].way)) {
        p->way = r.choice[by].way;
    } else if (tune(d, s, p, g, &r)) {
        p->way = r.choice[by].way;
        kept &= gemm_store_add(&store, s, &r);
    } else {
        p->way = first;
        if (by == GEMM_TUNING_FASTEST) kept &= gemm_store_add(&store, s, unmeasured(p, &r));
    }
    CHECK(kept || by != GEMM_TUNING_FASTEST,
          "%s: --gemm-tuning fastest needs a folder for what it chooses that can be locked and written "
          "(ISOTRON_CACHE_DIR), or ranks would differ",
          g->op);
    gemm_describe(p, p->way.fused);
    gemm_store_close(&store);
}
