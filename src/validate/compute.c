/* Tests GEMMs on integers. Partial sums in the accumulator are exact in any order, so each result has one
 * correct value: the integer sum, rounded once to the result's type. Device i computes block i and the block of
 * its neighbour, device i + 1. The host of device i also computes block i.
 *
 * The first result of each block is checked bitwise: the device's own block is compared with the host's result,
 * and the hash of the neighbour's block with the hash from the neighbour's host. The device then repeatedly
 * computes both blocks and checks each result: it adds the negative of the correct result and counts the zeros.
 * The device is never idle, and every result is checked. The host reads only results that differ. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/amount.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/philox.h"
#include "kernels/attr.h"
#include "kernels/ops.h"
#include "validate/load.h"
#include "validate/stage.h"

/* Operands are integers of at most 127, multiplied by a factor that depends on the type. With K = 1024 terms, the
 * sums of products of the integers are below 2^24. */
enum { K = 1024, LARGEST = 127, BLOCKS = 2, MOST_BATCH = 16 };

static const struct {
    const char *name;
    DType in, out;
    /* Factor of the operands. In F64, the factor adds 14 bits to each operand. In F16, the factor prevents sums from
     * overflowing. */
    double factor;
    bool fp8;
} TYPES[] = {{"fp64", F64, F64, 0x1p14 + 1, false},
             {"fp32", F32, F32, 1, false},
             {"bf16", BF16, BF16, 1, false},
             {"fp16", F16, F16, 0x1p-5, false},
             {"fp8", F8E4M3, F32, 1, true}};
enum { N_TYPES = sizeof TYPES / sizeof *TYPES };

typedef struct Block {
    int8_t *x, *w;   /* [n, K] */
    int32_t *y;      /* [n, n]: the exact result of the device's own block */
    int8_t *x8, *w8; /* values of at most 4, so that FP8 sums of 128 terms fit into 14 bits */
    int32_t *y8;
} Block;

typedef struct Compute {
    StageRank *r;
    int64_t n; /* number of rows of each operand */
    int batch; /* number of results that the device compares before the host reads the counts */
    Block block[BLOCKS];
    /* the following members describe device memory, for one type */
    Tensor x[BLOCKS], w[BLOCKS], negative[BLOCKS]; /* negative: the negated correct results */
    Tensor y[MOST_BATCH], sum, inverse;
    int64_t *counts; /* [batch] */
    char *memory;
    size_t bytes;
    void *wanted[BLOCKS], *got; /* [n, n] in the result's type */
    int64_t gemms;              /* number of compared results */
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

/* ---- computation on the device ---- */

static void upload(const Compute *c, int type, const Tensor *t, const int8_t *v) {
    const size_t size = dtype_size(TYPES[type].in), count = (size_t)(c->n * K);
    float *f = mem_alloc(count * sizeof *f);
    void *stored = mem_alloc(count * size);
    for (size_t i = 0; i < count; i++) f[i] = (float)(v[i] * TYPES[type].factor);
    dtype_convert(stored, TYPES[type].in, f, F32, count);
    device_write(c->r->device, t->data, stored, count * size);
    free(f), free(stored);
}

static size_t operand_bytes(const Compute *c) { return (size_t)(c->n * K) * sizeof(double); }
static size_t result_bytes(const Compute *c) { return (size_t)(c->n * c->n) * sizeof(double); }

static size_t memory_bytes(const Compute *c) {
    return 2 * BLOCKS * operand_bytes(c) + (size_t)(BLOCKS + c->batch + 1) * result_bytes(c) + SPACE_ALIGN +
           (size_t)c->batch * sizeof *c->counts;
}

static void place(Compute *c, int type) {
    const int64_t rows[] = {c->n, 1, K}, flat[] = {c->n, K}, result[] = {c->n, 1, c->n},
                  square[] = {c->n, c->n}, one = 1;
    const bool fp8 = TYPES[type].fp8;
    char *at = c->memory;
    for (int b = 0; b < BLOCKS; b++, at += 2 * operand_bytes(c)) {
        c->x[b] = tensor_make(at, TYPES[type].in, fp8 ? 2 : 3, fp8 ? flat : rows);
        c->w[b] = tensor_make(at + operand_bytes(c), TYPES[type].in, 2, flat);
    }
    for (int i = 0; i < BLOCKS + c->batch + 1; i++, at += result_bytes(c)) {
        Tensor *t = i < BLOCKS ? &c->negative[i] : i < BLOCKS + c->batch ? &c->y[i - BLOCKS] : &c->sum;
        *t = tensor_make(at, TYPES[type].out, fp8 ? 2 : 3, fp8 ? square : result);
    }
    c->inverse = tensor_make(at, F32, 1, &one);
    c->counts = (int64_t *)(at + SPACE_ALIGN);
}

static void multiply_on_device(Compute *c, int type, int block, int result, Device *device) {
    const LinearAttr linear = {.fixed_order = false};
    const Fp8GemmAttr fp8 = {.fast = false};
    const Call plain = {
        .in = {&c->x[block], &c->w[block]}, .out = {&c->y[result]}, .attr = &linear, .device = device};
    const Call scaled = {.in = {&c->x[block], &c->w[block], &c->inverse, &c->inverse},
                         .out = {&c->y[result]},
                         .attr = &fp8,
                         .device = device};
    if (TYPES[type].fp8)
        call_run(&OPS[OP_fp8_gemm], &scaled);
    else
        call_run(&OPS[OP_linear], &plain);
}

/* Counts the correct elements of a result. The number of correct elements stays in device memory. */
static void count_right(Compute *c, int block, int result) {
    const int64_t n = c->n * c->n, one = 1;
    Tensor flat = tensor_make(c->sum.data, c->sum.dtype, 1, &n),
           count = tensor_make(c->counts + result, I64, 1, &one);
    Device *d = c->r->device;
    call_run(&OPS[OP_add],
             &(Call){.in = {&c->y[result], &c->negative[block]}, .out = {&c->sum}, .device = d});
    call_run(&OPS[OP_count_zeros], &(Call){.in = {&flat}, .out = {&count}, .device = d});
}

static void prepare(Compute *c, int type) {
    place(c, type);
    Device *null = device_null_for(c->r->device);
    multiply_on_device(c, type, 0, 0, null);
    device_reserve_scratch(c->r->device, null->scratch);
    device_free(null);
    const float one = 1;
    device_write(c->r->device, c->inverse.data, &one, sizeof one);
    for (int b = 0; b < BLOCKS; b++) {
        upload(c, type, &c->x[b], TYPES[type].fp8 ? c->block[b].x8 : c->block[b].x);
        upload(c, type, &c->w[b], TYPES[type].fp8 ? c->block[b].w8 : c->block[b].w);
    }
}

/* Computes a block on the device, and returns the hash of the result, which is in `got`. */
static uint64_t compute(Compute *c, int type, int block) {
    const size_t bytes = tensor_bytes(&c->y[0]);
    memset(c->got, 0xff, bytes);
    device_write(c->r->device, c->y[0].data, c->got, bytes);
    multiply_on_device(c, type, block, 0, c->r->device);
    device_read(c->r->device, c->got, c->y[0].data, bytes);
    return hash64(c->got, bytes, 0);
}

static void upload_negatives(Compute *c) {
    const size_t bytes = tensor_bytes(&c->sum), size = dtype_size((DType)c->sum.dtype);
    for (int b = 0; b < BLOCKS; b++) {
        memcpy(c->got, c->wanted[b], bytes);
        for (size_t i = size - 1; i < bytes; i += size) ((unsigned char *)c->got)[i] ^= 0x80;
        device_write(c->r->device, c->negative[b].data, c->got, bytes);
    }
}

/* ---- comparison ---- */

/* A rank's result for one type. */
typedef struct Found {
    /* Hashes of results. other: the neighbour's block, computed by this device; host: this rank's block, computed by
     * the host. */
    uint64_t other, host;
    /* Number of wrong elements in a result, and index of the first wrong element, or -1 if the host found none. */
    int64_t wrong, at;
    uint64_t got, wanted; /* the bits of the first wrong element */
    int64_t repetition;
    int block;
} Found;

static uint64_t bits_at(const void *array, DType t, int64_t at) {
    uint64_t bits = 0;
    memcpy(&bits, (const char *)array + (size_t)at * dtype_size(t), dtype_size(t));
    return bits;
}

static uint64_t expect(const Compute *c, int type) {
    const DType t = TYPES[type].out;
    const int32_t *y = TYPES[type].fp8 ? c->block[0].y8 : c->block[0].y;
    const double factor = TYPES[type].factor * TYPES[type].factor;
    for (int64_t i = 0; i < c->n * c->n; i++) dtype_store(c->wanted[0], t, i, y[i] * factor);
    return hash64(c->wanted[0], (size_t)(c->n * c->n) * dtype_size(t), 0);
}

static void locate(const Compute *c, int type, int block, Found *f) {
    const DType t = TYPES[type].out;
    f->block = block, f->repetition = c->gemms;
    for (int64_t i = 0; i < c->n * c->n; i++) {
        const uint64_t got = bits_at(c->got, t, i), wanted = bits_at(c->wanted[block], t, i);
        if (got == wanted) continue;
        if (!f->wrong++) f->at = i, f->got = got, f->wanted = wanted;
    }
}

static void report_wrong(const Compute *c, int type, int rank, const Found *f) {
    StageRank *r = c->r;
    const uint64_t flipped = f->got ^ f->wanted;
    char where[120] = "according to the device, but correct according to the host";
    if (f->at >= 0)
        snprintf(where, sizeof where,
                 "the first at row %" PRId64 ", column %" PRId64 ": bits %" PRIx64 ", not %" PRIx64 "%s",
                 f->at / c->n, f->at % c->n, f->got, f->wanted,
                 flipped & (flipped - 1) ? "" : " (one bit flipped)");
    outcome_add(r->out, VALIDATE_FAIL, stage_suspect(r, rank).s,
                "GEMM in %s: %" PRId64 " of %" PRId64
                " elements of the block of rank %d are wrong in GEMM %" PRId64 ", %s",
                TYPES[type].name, f->wrong, c->n * c->n, (rank + f->block) % r->world, f->repetition, where);
}

/* Returns whether all ranks found only correct results. All ranks must call this function. */
static bool judge(const Compute *c, int type, const Found *mine) {
    StageRank *r = c->r;
    Found *all = mem_zero((size_t)r->world, sizeof *all);
    bool good = true;
    stage_gather(r, mine, all, sizeof *mine);
    for (int i = 0; i < r->world; i++) {
        const int next = (i + 1) % r->world;
        const bool differs = all[i].other != all[next].host;
        good &= !all[i].wrong && !differs;
        if (r->out && all[i].wrong) report_wrong(c, type, i, &all[i]);
        if (r->out && differs)
            outcome_add(
                r->out, VALIDATE_FAIL, stage_suspect(r, i).s,
                "GEMM in %s: the result for the block of rank %d differs from the result of the host%s",
                TYPES[type].name, next, all[next].wrong ? "" : ", but that rank's own result does not");
    }
    free(all);
    return good;
}

static void compare_with_host(Compute *c, int type, Found *f) {
    f->host = expect(c, type);
    if (compute(c, type, 0) != f->host) locate(c, type, 0, f);
    f->other = compute(c, type, 1);
    memcpy(c->wanted[1], c->got, tensor_bytes(&c->y[0]));
    c->gemms += BLOCKS;
}

/* Computes both blocks until end_ns. A rank that has found a wrong result continues. If it stopped, it would
 * wait for the other ranks beyond the deadline, and those ranks would be reported instead. */
static void repeat(Compute *c, int type, int64_t end_ns, Found *f) {
    int64_t counts[MOST_BATCH];
    const int64_t n = c->n * c->n;
    upload_negatives(c);
    do {
        for (int i = 0; i < c->batch; i++) {
            multiply_on_device(c, type, i % BLOCKS, i, c->r->device);
            count_right(c, i % BLOCKS, i);
        }
        device_read(c->r->device, counts, c->counts, (size_t)c->batch * sizeof *counts);
        for (int i = 0; i < c->batch; i++, c->gemms++) {
            if (f->wrong || counts[i] == n) continue;
            device_read(c->r->device, c->got, c->y[i].data, tensor_bytes(&c->y[i]));
            locate(c, type, i % BLOCKS, f);
            if (!f->wrong) f->wrong = n - counts[i], f->at = -1;
        }
    } while (clock_ns() < end_ns);
}

static bool has_type(const Compute *c, int type) {
    return !TYPES[type].fp8 || device_fp8_gemms(c->r->device) & FP8_GEMM_WHOLE;
}

static void check_type(Compute *c, int type, int types_left) {
    Found f = {.wrong = 0};
    STAGE_DOING(c->r, "GEMMs in %s", TYPES[type].name);
    prepare(c, type);
    compare_with_host(c, type, &f);
    if (!judge(c, type, &f)) return;
    const int64_t now = clock_ns();
    repeat(c, type, now + (c->r->end_ns - now) / types_left, &f);
    judge(c, type, &f);
}

static Err on_rank(StageRank *r) {
    const bool gpu = device_is_discrete(r->device);
    Compute c = {.r = r, .n = gpu ? 2048 : 96, .batch = gpu ? MOST_BATCH : BLOCKS};
    const bool fp8 = has_type(&c, N_TYPES - 1);
    const int types = fp8 ? N_TYPES : N_TYPES - 1;
    STAGE_DOING(r, "computing the exact results on the host");
    make_block(&c.block[0], c.n, (uint64_t)r->rank, true, fp8);
    make_block(&c.block[1], c.n, (uint64_t)((r->rank + 1) % r->world), false, fp8);
    c.bytes = memory_bytes(&c);
    c.memory = device_alloc(r->device, c.bytes, "GEMMs");
    for (int b = 0; b < BLOCKS; b++) c.wanted[b] = mem_alloc(result_bytes(&c));
    c.got = mem_alloc(result_bytes(&c));
    NvmlWatch *watch = gpu ? load_watch(r) : NULL;
    for (int t = 0; t < types; t++) check_type(&c, t, types - t);
    free(loads_of_ranks(r, watch));
    if (r->out) {
        outcome_sum_up(r->out, "fp64 fp32 bf16 fp16%s, %s on %s%s", fp8 ? " fp8" : "",
                       amount(c.gemms, "GEMM").s, r->world > r->sharing ? "each of " : "",
                       amount(r->world / r->sharing, "device").s);
        if (r->world == r->sharing)
            outcome_limit(r->out, "compute: equal results on two devices, because there is only one");
    }
    device_release(r->device, c.memory, c.bytes);
    free(c.got);
    for (int b = 0; b < BLOCKS; b++) free(c.wanted[b]), free_block(&c.block[b]);
    return ERR_OK;
}

Err stage_compute(const StageInput *in) { return stage_on_ranks(in, on_rank); }
