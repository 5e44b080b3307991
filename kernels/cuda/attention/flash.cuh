/* Code that Isotron's attention kernels share: parameters, the keys of each query, dropout, and biases.
 *
 * The r * s queries of a kv group are numbered as rows, head by head. A block processes a tile of rows and a
 * tile of keys in shared memory. Tiles of keys begin at multiples of the tile size, and each row processes the
 * tiles in order. A masked key adds exactly 0. A row's result therefore does not depend on other rows or later
 * keys. */
#pragma once

#include "kernels/cuda/common.cuh"

#include "kernels/cuda/dropout.cuh"
#include "kernels/relative_buckets.h"

enum { HEAD_MOST = ATTENTION_WIDEST };

/* A tensor [rows,b,g,r,width], with strides in elements. */
struct Heads {
    Cells cells;
    int64_t row, sample, group, head;
    bool vector; /* true if the addresses and lengths of rows are multiples of 16 bytes */
    bool add;
};

/* The keys [lo, hi) that a row attends to. */
struct Range {
    int lo, hi;
};

/* The keys [begin, end) that at least one row of a tile attends to, and the keys [all_begin, all_end) that all
 * rows attend to. */
struct Span {
    int begin, end, all_begin, all_end;
};

/* The values that the backward pass needs for a row: lse in the base of the kernel's logarithms (0 if the row
 * attends to no key), and sum(dy * y). */
template <typename R> struct RowSums { R base, delta; };

struct Flash {
    Heads q, k, v, dy, y, dq, dk, dv;
    Cells lse;                            /* [b,g,r,s] */
    int b, g, r, s, t, d, e, rows, tiles; /* tiles: number of row tiles in the backward pass */
    double scale, cap;                    /* if `cap` is 0, there is no cap */
    float unit;                           /* used by attention_mma.cu */
    SequenceSlice query, key;
    int64_t left, right, chunk_size;
    const int64_t *first_key, *lengths;
    bool drops;
    Drop<double> drop; /* without dropout, `drop.scale` is 1 */
    int64_t first_sample, heads, first_head, seq_total;
    /* true if scores have a bias: ALiBi (`buckets` is 0), or a relative position bias with `buckets`
     * buckets */
    bool biased;
    int buckets;
    int64_t distances, last_query;
    void *bias;      /* R [g,r,distances]: element i is the bias for key - query = i - last_query */
    uint8_t *bucket; /* [g,r,distances] */
    /* used only in the backward pass */
    void *bias_sums; /* R [b,g,rows,buckets]: sums of score gradients; NULL if not needed */
    Range *range;    /* [b,rows] */
    Span *span;      /* [b,tiles] */
    void *sums;      /* RowSums [b,g,rows] */
};

/* ---- visible keys ---- */

__device__ static inline Range visible_keys(const Flash &p, int64_t sample, int i) {
    const int64_t at = slice_position(&p.query, i), first = p.first_key ? p.first_key[sample * p.s + i] : 0;
    const int64_t lo = slice_before(&p.key, p.t, attention_begin(p.left, p.chunk_size, at, first));
    int64_t hi = p.lengths ? slice_before(&p.key, p.t, p.lengths[sample]) : p.t;
    if (p.right != WINDOW_OFF) hi = slice_before(&p.key, hi, at + p.right + 1);
    Range x = {0, 0};
    if (lo < hi) x.lo = (int)lo, x.hi = (int)hi;
    return x;
}

/* Writes the ranges of rows [row0, row0 + tile) to shared memory. All threads of a block must call this
 * function, and the block must have at least `tile` threads. Rows after the last one attend to no key, and do
 * not affect the span. */
__device__ static inline void find_ranges(const Flash &p, int64_t sample, int row0, int tile, Range *range,
                                          Span *span) {
    if (threadIdx.x == 0) span->begin = p.t, span->end = 0, span->all_begin = 0, span->all_end = p.t;
    __syncthreads();
    if ((int)threadIdx.x < tile) {
        Range x = {0, 0};
        if (row0 + (int)threadIdx.x < p.rows) {
            x = visible_keys(p, sample, (row0 + (int)threadIdx.x) % p.s);
            if (x.lo < x.hi) atomicMin(&span->begin, x.lo), atomicMax(&span->end, x.hi);
            atomicMax(&span->all_begin, x.lo), atomicMin(&span->all_end, x.hi);
        }
        range[threadIdx.x] = x;
    }
    __syncthreads();
}

/* ---- rows of an operand ---- */

/* The lines of a tile. Each line is a query of one of the group's heads, or a key. */
struct Lines {
    Cells cells;
    int64_t base, row_stride, head_stride;
    int first_row, first_head, length, n; /* length: number of rows per head; lines >= n do not exist */

    __device__ __forceinline__ int64_t offset(int i) const {
        int row = first_row + i, head = first_head;
        if (row >= length) head += row / length, row %= length;
        return base + row * row_stride + head * head_stride;
    }
};
__device__ static inline Lines query_lines(const Flash &p, const Heads &x, int64_t sample, int64_t group,
                                           int row0, int most) {
    const int n = p.rows - row0 < most ? p.rows - row0 : most;
    return {x.cells, sample * x.sample + group * x.group, x.row, x.head, row0 % p.s, row0 / p.s, p.s, n};
}
__device__ static inline Lines key_lines(const Flash &p, const Heads &x, int64_t sample, int64_t group,
                                         int key0, int most) {
    const int n = p.t - key0 < most ? p.t - key0 : most;
    return {x.cells, sample * x.sample + group * x.group, x.row, 0, key0, 0, INT32_MAX, n};
}

/* ---- dropout ---- */

/* Returns the dropout index of a row's probability for the key at position 0. */
__device__ static inline uint64_t drop_line(const Flash &p, int64_t sample, int64_t group, int row) {
    const int64_t head = p.first_head + group * p.r + row / p.s;
    const int64_t line = ((p.first_sample + sample) * p.heads + head) * p.seq_total;
    return (uint64_t)((line + slice_position(&p.query, row % p.s)) * p.seq_total);
}
__device__ static inline bool is_kept(const Flash &p, uint64_t line, int key) {
    const uint64_t index = line + (uint64_t)slice_position(&p.key, key);
    return p.drop.keeps(philox_u32(p.drop.seed, p.drop.site, index));
}

/* ---- biases by distance ---- */

/* For the key at position 0, returns the index of a row's bias and bucket in the tables. */
__device__ static inline int bias_line(const Flash &p, int64_t group, int row) {
    const int64_t first = (group * p.r + row / p.s) * p.distances;
    return (int)(first + p.last_query - slice_position(&p.query, row % p.s));
}

/* ---- host code ---- */

static inline Heads heads_of(const Tensor *t) {
    Heads h = {};
    if (!t) return h;
    h.cells = cells(t);
    h.row = t->stride[0], h.sample = t->stride[1], h.group = t->stride[2], h.head = t->stride[3];
    h.vector = rows_are_aligned(t), h.add = accumulates(t);
    return h;
}

static inline Flash flash_of(const Call *c, const Tensor *q, const Tensor *k, const Tensor *v,
                             const Tensor *first_key, const Tensor *lengths, const Tensor *bias) {
    const AttentionAttr *a = (const AttentionAttr *)c->attr;
    const int64_t rows = q->dim[3] * q->dim[0];
    CHECK(q->dtype == k->dtype && q->dtype == v->dtype, "attention: q is %s, k is %s and v is %s",
          dtype_name((DType)q->dtype), dtype_name((DType)k->dtype), dtype_name((DType)v->dtype));
    CHECK(q->dim[4] <= HEAD_MOST && v->dim[4] <= HEAD_MOST,
          "attention: the widths of heads are %lld and %lld; at most %d is supported", (long long)q->dim[4],
          (long long)v->dim[4], HEAD_MOST);
    CHECK(rows < INT32_MAX / 2 && k->dim[0] < INT32_MAX / 2,
          "attention: %lld queries and %lld keys are too many", (long long)rows, (long long)k->dim[0]);
    Flash p = {};
    p.q = heads_of(q), p.k = heads_of(k), p.v = heads_of(v);
    p.s = (int)q->dim[0], p.b = (int)q->dim[1], p.g = (int)q->dim[2], p.r = (int)q->dim[3],
    p.d = (int)q->dim[4];
    p.t = (int)k->dim[0], p.e = (int)v->dim[4], p.rows = (int)rows;
    p.scale = a->scale, p.cap = a->softcap, p.query = a->query, p.key = a->key, p.left = a->window_left,
    p.right = a->window_right, p.chunk_size = a->chunk_size;
    p.first_key = ids_of(first_key), p.lengths = ids_of(lengths);
    const DropoutAttr *d = &a->dropout;
    p.drops = d->rate > 0, p.drop.scale = 1;
    if (p.drops) p.drop = drop_of<double>(d);
    p.first_sample = d->first_sample, p.seq_total = d->seq_total;
    p.heads = a->heads, p.first_head = a->first_head;
    p.biased = bias || a->alibi != 0;
    if (bias) p.buckets = (int)bias->dim[0];
    p.last_query = slice_position(&a->query, q->dim[0] - 1);
    p.distances = p.last_query + slice_position(&a->key, k->dim[0] - 1) + 1;
    return p;
}

/* Returns the number of blocks, one for each tile of each kv group in each sample. */
static inline unsigned blocks_of(const Flash &p, int64_t tiles) {
    const int64_t n = (int64_t)p.b * p.g * tiles;
    CHECK(n <= INT32_MAX, "attention: %d kv groups of %d samples with %lld tiles each are too many", p.g, p.b,
          (long long)tiles);
    return (unsigned)n;
}

/* attention_mma.cu processes 16-bit storage on tensor cores. The scores in that file are in units of log(2). */
constexpr double LOG2_E = 1.4426950408889634;
void attention_mma(const Call *, const Flash *);
void attention_grad_mma(const Call *, const Flash *);

/* attention_bias.cu. Places the tables and, if `gradient` is true, the sums in scratch memory. Returns the size
 * of the tables and sums in bytes, or 0 if there is no bias. */
size_t place_bias(Flash *, DType, bool gradient, char *memory);
void tabulate_bias(const Call *, const Flash *, const Tensor *bias);
/* Sums bias_sums over rows, and writes the result to dbias or adds it. */
void sum_bias_gradients(const Call *, const Flash *, const Tensor *dbias);
/* Returns the number of rows per tile in the backward pass. */
static inline int gradient_tile(DType dtype) { return dtype == F64 ? 32 : 64; }
