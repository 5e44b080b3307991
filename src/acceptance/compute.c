/* GEMMs on integers whose partial sums are exact in the accumulator, whatever their order, so that each
 * result has one correct value: the integer sum, rounded once to the type of the result. Device i computes
 * block i and that of its neighbour, block i + 1. The host computes block i. Each result is compared
 * bitwise with the host's, and each hash of a neighbour's block with that of its owner. Between two
 * comparisons the device is kept busy. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "acceptance/stage.h"
#include "base/amount.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/philox.h"
#include "kernels/attr.h"
#include "kernels/ops.h"

/* Operands are integers v of at most 127 times a power of two. With K = 1024 terms, sums are below 2^24. */
enum { K = 1024, LARGEST = 127, BLOCKS = 2, BUSY = 16 };

static const struct {
    const char *name;
    DType in, out;
    double factor; /* of both operands; F64: 14 more bits of each; F16: sums stay below its largest number */
    bool fp8;
} TYPES[] = {{"fp64", F64, F64, 0x1p14 + 1, false},
             {"fp32", F32, F32, 1, false},
             {"bf16", BF16, BF16, 1, false},
             {"fp16", F16, F16, 0x1p-5, false},
             {"fp8", F8E4M3, F32, 1, true}};
enum { N_TYPES = sizeof TYPES / sizeof *TYPES };

typedef struct Block {
    int8_t *x, *w;   /* [n, K] */
    int32_t *y;      /* [n, n], the exact result; the device's own block only */
    int8_t *x8, *w8; /* of at most 4, so that FP8 sums of 128 terms fit into 14 bits */
    int32_t *y8;
} Block;

typedef struct Compute {
    StageRank *r;
    int64_t n; /* rows of each operand */
    Block block[BLOCKS];
    Tensor x, w, y, inverse; /* on the device */
    char *memory;
    size_t bytes;
    void *wanted, *got; /* [n, n] in the type of the result */
    int64_t repeats[N_TYPES];
} Compute;

/* ---- data ---- */

static int8_t *draw(int64_t n, int largest, uint64_t block, uint64_t which) {
    int8_t *v = mem_alloc((size_t)(n * K));
    for (int64_t i = 0; i < n * K; i += 4) {
        const Philox4 p = philox4x32(block, which, (uint64_t)i / 4);
        for (int k = 0; k < 4; k++)
            v[i + k] = (int8_t)((int)(p.v[k] % (uint32_t)(2 * largest + 1)) - largest);
    }
    return v;
}

static int32_t *multiply(const int8_t *x, const int8_t *w, int64_t n) {
    int32_t *y = mem_alloc((size_t)(n * n) * sizeof *y);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            int32_t sum = 0;
            for (int64_t k = 0; k < K; k++) sum += (int32_t)x[i * K + k] * w[j * K + k];
            y[i * n + j] = sum;
        }
    return y;
}

static void make_block(Block *b, int64_t n, uint64_t number, bool with_result, bool with_fp8) {
    enum { LARGEST_FP8 = 4 };
    b->x = draw(n, LARGEST, number, 0), b->w = draw(n, LARGEST, number, 1);
    if (with_result) b->y = multiply(b->x, b->w, n);
    if (!with_fp8) return;
    b->x8 = draw(n, LARGEST_FP8, number, 2), b->w8 = draw(n, LARGEST_FP8, number, 3);
    if (with_result) b->y8 = multiply(b->x8, b->w8, n);
}

static void free_block(Block *b) {
    free(b->x), free(b->w), free(b->y);
    free(b->x8), free(b->w8), free(b->y8);
}

/* ---- on the device ---- */

static void upload(const Compute *c, int type, const Tensor *t, const int8_t *v) {
    const size_t size = dtype_size(TYPES[type].in), count = (size_t)(c->n * K);
    float *f = mem_alloc(count * sizeof *f);
    void *stored = mem_alloc(count * size);
    for (size_t i = 0; i < count; i++) f[i] = (float)(v[i] * TYPES[type].factor);
    dtype_convert(stored, TYPES[type].in, f, F32, count);
    device_write(c->r->device, t->data, stored, count * size);
    free(f), free(stored);
}

static void place_operands(Compute *c, int type) {
    const int64_t rows[] = {c->n, 1, K}, flat[] = {c->n, K}, result[] = {c->n, 1, c->n},
                  square[] = {c->n, c->n}, one = 1;
    const bool fp8 = TYPES[type].fp8;
    const size_t operand = (size_t)(c->n * K) * sizeof(double);
    c->x = tensor_make(c->memory, TYPES[type].in, fp8 ? 2 : 3, fp8 ? flat : rows);
    c->w = tensor_make(c->memory + operand, TYPES[type].in, 2, flat);
    c->inverse = tensor_make(c->memory + 2 * operand, F32, 1, &one);
    c->y = tensor_make(c->memory + 2 * operand + SPACE_ALIGN, TYPES[type].out, fp8 ? 2 : 3,
                       fp8 ? square : result);
}

static void multiply_on_device(Compute *c, int type, Device *device) {
    const LinearAttr linear = {.fixed_order = false};
    const Fp8GemmAttr fp8 = {.fast = false};
    const Call plain = {.in = {&c->x, &c->w}, .out = {&c->y}, .attr = &linear, .device = device};
    const Call scaled = {
        .in = {&c->x, &c->w, &c->inverse, &c->inverse}, .out = {&c->y}, .attr = &fp8, .device = device};
    if (TYPES[type].fp8)
        call_run(&OPS[OP_fp8_gemm], &scaled);
    else
        call_run(&OPS[OP_linear], &plain);
}

static void prepare(Compute *c, int type) {
    place_operands(c, type);
    Device *null = device_null_for(c->r->device);
    multiply_on_device(c, type, null);
    device_reserve_scratch(c->r->device, null->scratch);
    device_free(null);
    const float one = 1;
    device_write(c->r->device, c->inverse.data, &one, sizeof one);
}

/* The hash of the result of a block on the device; the result is in `got`. */
static uint64_t compute(Compute *c, int type, const Block *b) {
    upload(c, type, &c->x, TYPES[type].fp8 ? b->x8 : b->x);
    upload(c, type, &c->w, TYPES[type].fp8 ? b->w8 : b->w);
    const size_t bytes = tensor_bytes(&c->y);
    memset(c->got, 0xff, bytes);
    device_write(c->r->device, c->y.data, c->got, bytes);
    for (int i = 0; i < (device_is_discrete(c->r->device) ? BUSY : 1); i++)
        multiply_on_device(c, type, c->r->device);
    device_read(c->r->device, c->got, c->y.data, bytes);
    return hash64(c->got, bytes, 0);
}

/* ---- comparison ---- */

/* The results of a rank in one type. */
typedef struct Found {
    uint64_t own, other, host; /* hashes: of both blocks on this device, and of the first on the host */
    int64_t wrong, at;         /* elements of the own block; the first one */
    uint64_t got, wanted;      /* its bits */
    int64_t repetition;
} Found;

static uint64_t bits_at(const void *array, DType t, int64_t at) {
    uint64_t bits = 0;
    memcpy(&bits, (const char *)array + (size_t)at * dtype_size(t), dtype_size(t));
    return bits;
}

static uint64_t expect(const Compute *c, int type, const Block *b) {
    const DType t = TYPES[type].out;
    const int32_t *y = TYPES[type].fp8 ? b->y8 : b->y;
    const double factor = TYPES[type].factor * TYPES[type].factor;
    for (int64_t i = 0; i < c->n * c->n; i++) dtype_store(c->wanted, t, i, y[i] * factor);
    return hash64(c->wanted, (size_t)(c->n * c->n) * dtype_size(t), 0);
}

static void locate(const Compute *c, int type, Found *f) {
    const DType t = TYPES[type].out;
    for (int64_t i = 0; i < c->n * c->n; i++) {
        const uint64_t got = bits_at(c->got, t, i), wanted = bits_at(c->wanted, t, i);
        if (got == wanted) continue;
        if (!f->wrong++) f->at = i, f->got = got, f->wanted = wanted;
    }
}

static void report(const Compute *c, int type, const Found *all) {
    StageRank *r = c->r;
    for (int i = 0; i < r->world; i++) {
        const Found *f = &all[i], *next = &all[(i + 1) % r->world];
        const uint64_t flipped = f->got ^ f->wanted;
        const bool one_bit = flipped && !(flipped & (flipped - 1));
        if (f->wrong)
            outcome_add(r->out, ACCEPT_FAIL, stage_suspect(r, i).s,
                        "GEMM in %s: %" PRId64 " of %" PRId64 " elements are wrong in repetition %" PRId64
                        ", the first at row %" PRId64 ", column %" PRId64 ": bits %" PRIx64 ", not %" PRIx64
                        "%s",
                        TYPES[type].name, f->wrong, c->n * c->n, f->repetition, f->at / c->n, f->at % c->n,
                        f->got, f->wanted, one_bit ? " (one bit flipped)" : "");
        if (f->other != next->host)
            outcome_add(r->out, ACCEPT_FAIL, stage_suspect(r, i).s,
                        "GEMM in %s: the block of rank %d differs from the host's result%s", TYPES[type].name,
                        (i + 1) % r->world, next->own == next->host ? ", which that rank also got" : "");
    }
}

/* One repetition of one type; false: something is wrong. */
static bool judge(Compute *c, int type, Found *all) {
    Found mine = {.repetition = c->repeats[type]++};
    mine.host = expect(c, type, &c->block[0]);
    mine.own = compute(c, type, &c->block[0]);
    if (mine.own != mine.host) locate(c, type, &mine);
    mine.other = compute(c, type, &c->block[1]);
    stage_gather(c->r, &mine, all, sizeof mine);
    bool good = true;
    for (int i = 0; i < c->r->world; i++)
        good &= !all[i].wrong && all[i].other == all[(i + 1) % c->r->world].host;
    if (!good && c->r->out) report(c, type, all);
    return good;
}

static bool has_type(const Compute *c, int type) {
    return !TYPES[type].fp8 || device_fp8_gemms(c->r->device) & FP8_GEMM_WHOLE;
}

static Err on_rank(StageRank *r) {
    const bool gpu = device_is_discrete(r->device);
    Compute c = {.r = r, .n = gpu ? 2048 : 96};
    Found *all = mem_zero((size_t)r->world, sizeof *all);
    bool bad[N_TYPES] = {false};
    const bool fp8 = has_type(&c, N_TYPES - 1);
    STAGE_DOING(r, "computing the exact results on the host");
    make_block(&c.block[0], c.n, (uint64_t)r->rank, true, fp8);
    make_block(&c.block[1], c.n, (uint64_t)((r->rank + 1) % r->world), false, fp8);
    c.bytes = (size_t)(2 * c.n * K + c.n * c.n) * sizeof(double) + SPACE_ALIGN;
    c.memory = device_alloc(r->device, c.bytes, "GEMMs");
    c.wanted = mem_alloc((size_t)(c.n * c.n) * sizeof(double));
    c.got = mem_alloc((size_t)(c.n * c.n) * sizeof(double));
    int64_t rounds = 0;
    bool any;
    do {
        any = false;
        for (int t = 0; t < N_TYPES; t++) {
            if (bad[t] || !has_type(&c, t)) continue;
            STAGE_DOING(r, "GEMMs in %s, repetition %" PRId64, TYPES[t].name, rounds);
            prepare(&c, t);
            bad[t] = !judge(&c, t, all);
            any |= !bad[t];
        }
        rounds++;
    } while (any && stage_has_time(r, 1));
    if (r->out) {
        outcome_sum_up(r->out, "fp64 fp32 bf16 fp16%s, %s on %s", fp8 ? " fp8" : "",
                       amount(rounds, "repetition").s, amount(r->world / r->sharing, "device").s);
        if (r->world == r->sharing)
            outcome_limit(r->out, "compute: equal results on two devices, because there is one");
    }
    device_release(r->device, c.memory, c.bytes);
    free(c.wanted), free(c.got), free(all);
    for (int i = 0; i < BLOCKS; i++) free_block(&c.block[i]);
    return ERR_OK;
}

Err stage_compute(const StageInput *in) { return stage_on_ranks(in, on_rank); }
