/* Attention that does not store all s x t probabilities: y = softmax(scale * q k^T + mask) v with an online softmax
 * over tiles of keys (Dao et al., "FlashAttention", 2022). The backward pass recomputes the probabilities from lse
 * (natural log) and uses delta = sum(dy * y):
 *   dv = p^T dy,  ds = p * (dy v^T - delta),  dq = scale * ds k,  dk = scale * ds^T q.
 * A soft cap c replaces each score x with c tanh(x / c) before the mask, and multiplies ds by the slope 1 -
 * tanh(x / c)^2. A bias is added to the scores. The gradient of a learned bias is the sum of ds over all
 * distances in the bias's bucket. Dropout factors multiply p in y and dv, and dy v^T in ds.
 *
 * A block consists of LANES query rows of one kv group (the rows of its r heads are consecutive), one row per
 * vector lane. No computation combines two rows. Tiles begin at fixed keys, a row processes its keys in
 * order, and a masked key adds exactly 0. A row's result therefore does not depend on other rows or later
 * keys. Keys have ascending positions (AttentionAttr.key), so a row always attends to a contiguous range of
 * rows of k.
 *
 * paged_attention uses the same method for keys in pages. Keys in pages may be stored in 16 bits. Consecutive
 * tokens of a request form blocks. If there are few rows, a block has only FEW_LANES lanes.
 *
 * y and lse are written; dq, dk, dv and dbias are written or accumulated. dk and dv are sums over a group's
 * rows in order, and dbias is a sum over the samples in order. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/cpu/dropout.h"
#include "kernels/cpu/tile.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/relative_buckets.h"
#include "tensor/float_bits.h"

enum { LANES = 2 * TILE_WIDTH, FEW_LANES = TILE_HALF, KEYS = 64 };
_Static_assert((int)KEYS <= DROPOUT_CHUNK, "the factors of a tile's row are drawn together");
_Static_assert((int)KEYS == PAGE_ROWS, "a tile of keys is in one page");

typedef struct Problem {
    const Call *call;
    const AttentionAttr *attr;
    const Tensor *q, *k, *v, *first_key, *lengths;
    int64_t s, b, g, r, t, d, dv, rows, lanes, blocks; /* lanes per block: LANES or FEW_LANES */
    /* paged: the positions of the tokens, and the pages of the request; NULL if keys are not in pages */
    const int64_t *position, *pages;
    int64_t first_token; /* paged: row of the operands that contains token 0 */
    /* [g,r,span]: element i is the bias for key - query = i - last_query; NULL if there is no bias */
    real *bias;
    int64_t last_query, span;
} Problem;

static void divide_rows(Problem *p, int64_t lanes) {
    p->rows = p->r * p->s, p->lanes = lanes, p->blocks = (p->rows + lanes - 1) / lanes;
}

static Problem problem(const Call *c, const Tensor *q, const Tensor *k, const Tensor *v,
                       const Tensor *first_key, const Tensor *lengths) {
    Problem p = {
        .call = c, .attr = c->attr, .q = q, .k = k, .v = v, .first_key = first_key, .lengths = lengths};
    p.s = q->dim[0], p.b = q->dim[1], p.g = q->dim[2], p.r = q->dim[3], p.d = q->dim[4];
    p.t = k->dim[0], p.dv = v->dim[4];
    divide_rows(&p, LANES);
    CHECK(p.t < INT32_MAX / 2, "attention: %lld keys are too many", (long long)p.t);
    return p;
}

static RelativeBuckets buckets_of(const Problem *p, const Tensor *bias) {
    return relative_buckets_make(bias->dim[0], p->attr->bias_max_distance, p->attr->bias_bidirectional);
}

static int64_t query_position(const Problem *p, int64_t i) {
    return p->position ? p->position[i] : slice_position(&p->attr->query, i);
}

static int64_t last_query(const Problem *p) {
    int64_t last = query_position(p, p->s - 1); /* a slice's rows are in order of position */
    for (int64_t i = 0; p->position && i < p->s; i++) last = p->position[i] > last ? p->position[i] : last;
    return last;
}

static void find_distances(Problem *p, const Tensor *bias) {
    const bool alibi = p->attr->alibi != 0;
    if ((!bias && !alibi) || !p->s || !p->t) return;
    p->last_query = last_query(p);
    p->span = p->last_query + slice_position(&p->attr->key, p->t - 1) + 1;
    const RelativeBuckets buckets = alibi ? (RelativeBuckets){0} : buckets_of(p, bias);
    p->bias = mem_alloc((size_t)(p->g * p->r * p->span) * sizeof(real));
    for (int64_t head = 0; head < p->g * p->r; head++)
        for (int64_t i = 0; i < p->span; i++)
            p->bias[head * p->span + i] =
                alibi ? (real)alibi_bias(p->attr, head, i - p->last_query)
                      : reals(bias)[relative_bucket(&buckets, i - p->last_query) * bias->dim[1] +
                                    p->attr->first_local + head];
}

/* Returns the address of a key or value head's first element. */
static real *head(const Tensor *t, int64_t sample, int64_t group) {
    return reals(t) + sample * t->stride[1] + group * t->stride[2];
}

/* Rows of a key or value head: either the stored rows or copies converted to `real`. */
typedef struct Rows {
    const real *at;
    int64_t stride;
} Rows;

/* Returns the index in the pool of the first element in row `first` of a request. Rows [first, end) are in
 * one page. */
static int64_t paged_at(const Problem *p, const Tensor *t, int64_t group, int64_t first, int64_t end) {
    const int64_t page = p->attr->page, row = p->pages[first / page] * page + first % page;
    CHECK(row >= 0 && row + end - first <= t->dim[0],
          "paged_attention: row %lld is outside the pool of %lld rows", (long long)row, (long long)t->dim[0]);
    return row * t->stride[0] + group * t->stride[2];
}

/* Prefetches rows that will be needed soon, because the hardware does not prefetch short rows at irregular
 * addresses. */
static void prefetch_rows(const Problem *p, const Tensor *t, int64_t group, int64_t first, int64_t end) {
    enum { LINE = 64 };
    if (!p->pages || first >= end) return;
    const int64_t at = paged_at(p, t, group, first, end), size = (int64_t)dtype_size((DType)t->dtype);
    const char *row = (const char *)t->data + at * size;
    for (int64_t i = first; i < end; i++, row += t->stride[0] * size)
        for (int64_t byte = 0; byte < tensor_width(t) * size; byte += LINE) __builtin_prefetch(row + byte);
}

/* Returns rows [first, end) of a request. The rows must be in one page, and fit into the buffer
 * `converted`. */
static Rows paged_rows(const Problem *p, const Tensor *t, int64_t group, int64_t first, int64_t end,
                       real *converted) {
    const int64_t at = paged_at(p, t, group, first, end), width = tensor_width(t);
    if (t->dtype == REAL_TYPE) return (Rows){reals(t) + at, t->stride[0]};
    for (int64_t i = 0; i < end - first; i++) {
        const uint16_t *row = (const uint16_t *)t->data + at + i * t->stride[0];
        if (t->dtype == BF16)
            for (int64_t c = 0; c < width; c++) converted[i * width + c] = (real)float_of_bf16(row[c]);
        else
            for (int64_t c = 0; c < width; c++) converted[i * width + c] = (real)float_of_f16(row[c]);
    }
    return (Rows){converted, width};
}

/* ---- a block of query rows ---- */

typedef struct Block {
    int64_t sample, group, first_row, n;
    int32_t lo[LANES], hi[LANES]; /* a lane attends to keys [lo, hi), an empty range if the lane is unused */
    int64_t begin, end;           /* the smallest range that contains the keys of all lanes */
} Block;

static Block block(const Problem *p, int64_t sample, int64_t group, int64_t index) {
    const AttentionAttr *a = p->attr;
    Block rows = {.sample = sample, .group = group, .first_row = index * p->lanes, .begin = p->t};
    rows.n = p->rows - rows.first_row < p->lanes ? p->rows - rows.first_row : p->lanes;
    const int64_t last = p->lengths && !p->pages ? slice_before(&a->key, p->t, int64s(p->lengths)[sample])
                                                 : p->t; /* end of the keys that are not padding */
    for (int64_t l = 0; l < rows.n; l++) {
        const int64_t i = (rows.first_row + l) % p->s, at = query_position(p, i);
        const int64_t first = p->first_key ? int64s(p->first_key)[sample * p->s + i] : 0;
        const int64_t lo =
            slice_before(&a->key, p->t, attention_begin(a->window_left, a->chunk_size, at, first));
        int64_t hi = last;
        if (a->window_right != WINDOW_OFF) hi = slice_before(&a->key, last, at + a->window_right + 1);
        if (lo >= hi) continue;
        rows.lo[l] = (int32_t)lo, rows.hi[l] = (int32_t)hi;
        rows.begin = lo < rows.begin ? lo : rows.begin;
        rows.end = hi > rows.end ? hi : rows.end;
    }
    return rows;
}

/* Returns the address of a lane's row in an [s,b,g,r,..] tensor. */
static real *lane_row(const Problem *p, const Block *rows, const Tensor *t, int64_t lane) {
    const int64_t row = rows->first_row + lane;
    return head(t, rows->sample, rows->group) + (p->first_token + row % p->s) * t->stride[0] +
           row / p->s * t->stride[3];
}

/* Sets dst [width,p->lanes] to the block's rows of x, transposed and multiplied by `scale`. */
static void pack_lanes(const Problem *p, const Block *rows, const Tensor *x, real scale, real *dst) {
    const int64_t width = tensor_width(x);
    for (int64_t l = 0; l < p->lanes; l++) {
        const real *row = l < rows->n ? lane_row(p, rows, x, l) : NULL;
        for (int64_t c = 0; c < width; c++) dst[c * p->lanes + l] = row ? scale * row[c] : 0;
    }
}

/* Sets dst [LANES,stride] to the block's rows of x, multiplied by `scale` and padded with zeros. */
static void pack_rows(const Problem *p, const Block *rows, const Tensor *x, real scale, real *dst,
                      int64_t stride) {
    const int64_t width = tensor_width(x);
    for (int64_t l = 0; l < LANES; l++) {
        const real *row = l < rows->n ? lane_row(p, rows, x, l) : NULL;
        for (int64_t c = 0; c < stride; c++) dst[l * stride + c] = row && c < width ? scale * row[c] : 0;
    }
}

static void store_row(real *dst, const real *src, int64_t src_stride, int64_t width, real scale, bool add) {
    for (int64_t c = 0; c < width; c++) {
        const real x = scale * src[c * src_stride];
        dst[c] = add ? dst[c] + x : x;
    }
}

/* ---- tiles: scores [key,lane] of the keys [first, end) of a tile ---- */

/* Functions with the argument `lanes` (LANES or FEW_LANES) are inlined, so that `lanes` is a compile-time
 * constant. */
#define EACH_LANES static inline __attribute__((always_inline))

typedef struct Range {
    int64_t first, end;
} Range;

static Range tile_keys(const Block *rows, int64_t tile) {
    const int64_t first = tile * KEYS, end = first + KEYS;
    return (Range){first > rows->begin ? first : rows->begin, end < rows->end ? end : rows->end};
}

/* Returns the rows of a tile of keys. */
static Rows key_rows(const Problem *p, const Tensor *t, const Block *rows, Range keys, real *converted) {
    if (p->pages) return paged_rows(p, t, rows->group, keys.first, keys.end, converted);
    return (Rows){head(t, rows->sample, rows->group) + keys.first * t->stride[0], t->stride[0]};
}

/* Sets out[key,lane] to the dot product of the key's row and the lane's column of x [width,lanes]. */
EACH_LANES void dot_keys(Rows key, int64_t width, Range keys, int lanes, const real *x, real *out) {
    const int64_t n = keys.end - keys.first;
    memset(out, 0, (size_t)(n * lanes) * sizeof(real));
    tile_gemm((Tile){.m = n,
                     .n = lanes,
                     .k = width,
                     .a = key.at,
                     .a_row = key.stride,
                     .a_col = 1,
                     .b = x,
                     .ldb = lanes,
                     .c = out,
                     .ldc = lanes});
}

/* For each lane, adds the sum over keys of w[key,lane] * (the key's row) to the lane's column of out
 * [width,lanes]. */
EACH_LANES void add_keys(Rows key, int64_t width, Range keys, int lanes, const real *w, real *out) {
    tile_gemm((Tile){.m = width,
                     .n = lanes,
                     .k = keys.end - keys.first,
                     .a = key.at,
                     .a_row = 1,
                     .a_col = key.stride,
                     .b = w,
                     .ldb = lanes,
                     .c = out,
                     .ldc = lanes});
}

EACH_LANES void mask(const Block *rows, Range keys, int lanes, real *score) {
    bool hidden = false;
    for (int l = 0; l < lanes; l++) hidden |= rows->lo[l] > keys.first || rows->hi[l] < keys.end;
    if (!hidden) return;
    for (int32_t j = (int32_t)keys.first; j < keys.end; j++, score += lanes)
#pragma omp simd
        for (int l = 0; l < lanes; l++)
            score[l] = ((j >= rows->lo[l]) & (j < rows->hi[l])) ? score[l] : -(real)INFINITY;
}

static void cap_scores(const Problem *p, Range keys, real *score) {
    const real cap = (real)p->attr->softcap;
    if (cap == 0) return;
    for (int64_t i = 0; i < (keys.end - keys.first) * p->lanes; i++)
        score[i] = cap * REAL_MATH(tanh)(score[i] / cap);
}

/* Computes the slopes of the soft cap; the slopes of masked scores are 0. */
static void cap_slopes(const Problem *p, Range keys, const real *score, real *slope) {
    const real cap = (real)p->attr->softcap;
    for (int64_t i = 0; i < (keys.end - keys.first) * LANES; i++) {
        const real t = score[i] / cap;
        slope[i] = t < -1 ? 0 : 1 - t * t;
    }
}

/* Returns the index in [heads,span] of the distance between the lane's query and the key at position 0. */
static int64_t distances_of(const Problem *p, const Block *rows, int64_t lane, int64_t head) {
    const int64_t i = (rows->first_row + lane) % p->s;
    return head * p->span + p->last_query - query_position(p, i);
}

static void add_bias(const Problem *p, const Block *rows, Range keys, real *score) {
    for (int64_t l = 0; p->bias && l < rows->n; l++) {
        const int64_t head = rows->group * p->r + (rows->first_row + l) / p->s;
        const real *bias = p->bias + distances_of(p, rows, l, head);
        for (int64_t j = keys.first, n; j < keys.end; j += n) {
            n = slice_run(&p->attr->key, j, keys.end - j);
            const int64_t at = slice_position(&p->attr->key, j);
            for (int64_t i = 0; i < n; i++) score[(j - keys.first + i) * p->lanes + l] += bias[at + i];
        }
    }
}

/* Adds the gradients of the scores to sum [r,span], indexed by distance. */
static void add_distances(const Problem *p, const Block *rows, Range keys, const real *ds, real *sum) {
    for (int64_t l = 0; l < rows->n; l++) {
        real *of_lane = sum + distances_of(p, rows, l, (rows->first_row + l) / p->s);
        for (int64_t j = keys.first, n; j < keys.end; j += n) {
            n = slice_run(&p->attr->key, j, keys.end - j);
            const int64_t at = slice_position(&p->attr->key, j);
            for (int64_t i = 0; i < n; i++) of_lane[at + i] += ds[(j - keys.first + i) * LANES + l];
        }
    }
}

/* Draws the dropout factors factor[key,lane]. Does not change the factors of lanes that have no row. */
static void draw(const Problem *p, const Block *rows, Range keys, real *factor) {
    const AttentionAttr *a = p->attr;
    const DropoutAttr *d = &a->dropout;
    for (int64_t l = 0; l < rows->n; l++) {
        const int64_t row = rows->first_row + l, query = slice_position(&a->query, row % p->s);
        const int64_t head = a->first_head + rows->group * p->r + row / p->s;
        const int64_t line = ((d->first_sample + rows->sample) * a->heads + head) * d->seq_total + query;
        for (int64_t j = keys.first, n; j < keys.end; j += n) {
            real of_key[KEYS];
            n = slice_run(&a->key, j, keys.end - j);
            dropout_factors(d, (uint64_t)(line * d->seq_total + slice_position(&a->key, j)), n, of_key);
            for (int64_t i = 0; i < n; i++) factor[(j - keys.first + i) * LANES + l] = of_key[i];
        }
    }
}

static void multiply(real *x, const real *by, Range keys) {
    const int64_t n = (keys.end - keys.first) * LANES;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) x[i] *= by[i];
}

/* ---- forward ---- */

typedef struct Softmax {
    real max[LANES], sum[LANES];
} Softmax;

/* Replaces each score with exp(score - max), where max is the lane's largest score so far. The caller must
 * then multiply sums over previous tiles by `shrink`. */
EACH_LANES void softmax_tile(Softmax *m, real *score, int64_t keys, int lanes, real *shrink) {
    real max[LANES], sum[LANES];
    memcpy(max, m->max, sizeof max);
    for (int64_t j = 0; j < keys; j++)
#pragma omp simd
        for (int l = 0; l < lanes; l++)
            max[l] = score[j * lanes + l] > max[l] ? score[j * lanes + l] : max[l];
#pragma omp simd
    for (int l = 0; l < lanes; l++) {
        const real base = max[l] == -(real)INFINITY ? 0 : max[l];
        shrink[l] = vector_exp(m->max[l] - base);
        sum[l] = m->sum[l] * shrink[l];
        m->max[l] = max[l], max[l] = base;
    }
    for (int64_t j = 0; j < keys; j++)
#pragma omp simd
        for (int l = 0; l < lanes; l++) {
            const real e = vector_exp(score[j * lanes + l] - max[l]);
            score[j * lanes + l] = e;
            sum[l] += e;
        }
    memcpy(m->sum, sum, sizeof sum);
}

/* Returns the number of elements in a block's scratch memory. */
static int64_t forward_scratch(const Problem *p) {
    const int64_t width = p->d > p->dv ? p->d : p->dv;
    return (p->d + p->dv + 2 * KEYS) * LANES + (p->pages ? KEYS * width : 0);
}

EACH_LANES void forward_tiles(const Problem *p, const Block *rows, int lanes, real *scratch) {
    real *q = scratch, *y = q + p->d * lanes, *score = y + p->dv * lanes, *factor = score + KEYS * lanes,
         *converted = factor + KEYS * lanes;
    Softmax m = {.sum = {0}};
    for (int l = 0; l < lanes; l++) m.max[l] = -(real)INFINITY;
    memset(y, 0, (size_t)(p->dv * lanes) * sizeof(real));
    pack_lanes(p, rows, p->q, (real)p->attr->scale, q);
    for (int64_t tile = rows->begin / KEYS; tile * KEYS < rows->end; tile++) {
        const Range keys = tile_keys(rows, tile), next = tile_keys(rows, tile + 1);
        prefetch_rows(p, p->v, rows->group, keys.first, keys.end);
        dot_keys(key_rows(p, p->k, rows, keys, converted), p->d, keys, lanes, q, score);
        cap_scores(p, keys, score);
        add_bias(p, rows, keys, score);
        mask(rows, keys, lanes, score);
        real shrink[LANES];
        softmax_tile(&m, score, keys.end - keys.first, lanes, shrink);
        for (int64_t c = 0; c < p->dv; c++)
#pragma omp simd
            for (int l = 0; l < lanes; l++) y[c * lanes + l] *= shrink[l];
        if (p->attr->dropout.rate > 0) {
            draw(p, rows, keys, factor);
            multiply(score, factor, keys);
        }
        prefetch_rows(p, p->k, rows->group, next.first, next.end);
        add_keys(key_rows(p, p->v, rows, keys, converted), p->dv, keys, lanes, score, y);
    }
    const Tensor *sums = p->call->out[1];
    real *lse = reals(sums) + (rows->sample * p->g + rows->group) * p->r * sums->dim[3] + p->first_token;
    for (int64_t l = 0; l < rows->n; l++) {
        const bool none = m.sum[l] == 0;
        store_row(lane_row(p, rows, p->call->out[0], l), y + l, lanes, p->dv, none ? 0 : 1 / m.sum[l], false);
        const int64_t row = rows->first_row + l;
        lse[row / p->s * sums->dim[3] + row % p->s] =
            none ? -(real)INFINITY : m.max[l] + REAL_MATH(log)(m.sum[l]);
    }
}

static void forward_block(const Problem *p, const Block *rows, real *scratch) {
    if (p->lanes == LANES)
        forward_tiles(p, rows, LANES, scratch);
    else
        forward_tiles(p, rows, FEW_LANES, scratch);
}

static void forward(void *arg, int64_t begin, int64_t end) {
    const Problem *p = arg;
    real *scratch = mem_aligned((size_t)forward_scratch(p) * sizeof(real));
    memset(scratch, 0, (size_t)forward_scratch(p) * sizeof(real));
    for (int64_t i = begin; i < end; i++) {
        const int64_t at = i % p->blocks, pair = i / p->blocks;
        /* With a causal mask, a block's work grows with its index, so long and short blocks alternate to
         * balance the work. */
        const int64_t index = at % 2 ? p->blocks - 1 - at / 2 : at / 2;
        const Block rows = block(p, pair / p->g, pair % p->g, index);
        forward_block(p, &rows, scratch);
    }
    free(scratch);
}

void KERNEL(attention)(const Call *c) {
    Problem p = problem(c, c->in[0], c->in[1], c->in[2], c->in[3], c->in[4]);
    find_distances(&p, c->in[5]);
    pool_for(c->device->pool, p.b * p.g * p.blocks, grain_rows(LANES * p.t * (p.d + p.dv)), forward, &p);
    free(p.bias);
}

/* ---- pages ---- */

/* Each problem in `run` covers consecutive tokens of one request, and has one unit of work for each block of
 * each group. */
typedef struct Paged {
    Problem *run;
    int64_t *first_unit, n; /* [n + 1] */
} Paged;

static Problem paged_problem(const Call *c, int64_t first, int64_t n) {
    const Tensor *table = c->in[3], *lengths = c->in[6];
    const int64_t request = int64s(c->in[4])[first];
    Problem p = problem(c, c->in[0], c->in[1], c->in[2], NULL, lengths);
    CHECK(request >= 0 && request < table->dim[0] && p.attr->page % PAGE_ROWS == 0,
          "paged_attention: request %lld (of %lld requests) or pages of %lld rows are invalid",
          (long long)request, (long long)table->dim[0], (long long)p.attr->page);
    p.s = n, p.first_token = first, p.position = int64s(c->in[5]) + first;
    divide_rows(&p, p.r * n <= 2 * FEW_LANES ? FEW_LANES : LANES);
    p.pages = int64s(table) + request * table->dim[1];
    const int64_t room = table->dim[1] * p.attr->page;
    p.t = lengths ? int64s(lengths)[request] : last_query(&p) + 1;
    CHECK(p.t <= room, "paged_attention: %lld rows do not fit into pages with room for %lld rows",
          (long long)p.t, (long long)room);
    find_distances(&p, c->in[7]);
    return p;
}

static Paged paged_runs(const Call *c) {
    const int64_t tokens = c->in[0]->dim[0], *request = int64s(c->in[4]);
    Paged x = {mem_alloc(((size_t)tokens + 1) * sizeof *x.run),
               mem_alloc(((size_t)tokens + 1) * sizeof *x.first_unit), 0};
    x.first_unit[0] = 0;
    for (int64_t i = 0, n; i < tokens; i += n) {
        for (n = 1; i + n < tokens && request[i + n] == request[i];) n++;
        x.run[x.n] = paged_problem(c, i, n);
        x.first_unit[x.n + 1] = x.first_unit[x.n] + x.run[x.n].g * x.run[x.n].blocks;
        x.n++;
    }
    return x;
}

static void paged_forward(void *arg, int64_t begin, int64_t end) {
    const Paged *x = arg;
    real *scratch = mem_aligned((size_t)forward_scratch(x->run) * sizeof(real));
    memset(scratch, 0, (size_t)forward_scratch(x->run) * sizeof(real));
    for (int64_t i = begin, run = 0; i < end; i++) {
        while (i >= x->first_unit[run + 1]) run++;
        const Problem *p = &x->run[run];
        const int64_t unit = i - x->first_unit[run];
        const Block rows = block(p, 0, unit / p->blocks, unit % p->blocks);
        forward_block(p, &rows, scratch);
    }
    free(scratch);
}

void KERNEL(paged_attention)(const Call *c) {
    Paged x = paged_runs(c);
    if (x.n) pool_for(c->device->pool, x.first_unit[x.n], 1, paged_forward, &x);
    for (int64_t i = 0; i < x.n; i++) free(x.run[i].bias);
    free(x.run), free(x.first_unit);
}

static void store_rows(const Tensor *x, const Tensor *rows, const Tensor *pool) {
    const int64_t width = tensor_width(x), heads = x->dim[2] * x->dim[3];
    for (int64_t i = 0; i < x->dim[0]; i++) {
        const int64_t row = int64s(rows)[i];
        CHECK(row >= 0 && row < pool->dim[0], "store_rows: row %lld is outside the pool of %lld rows",
              (long long)row, (long long)pool->dim[0]);
        for (int64_t h = 0; h < heads; h++)
            dtype_convert(
                tensor_at(pool, row * pool->stride[0] + h * width), (DType)pool->dtype,
                tensor_at(x, i * x->stride[0] + h / x->dim[3] * x->stride[2] + h % x->dim[3] * x->stride[3]),
                (DType)x->dtype, (size_t)width);
    }
}

void KERNEL(store_rows)(const Call *c) {
    store_rows(c->in[0], c->in[1], c->out[0]);
    if (c->out[1]) store_rows(c->in[2], c->in[1], c->out[1]);
}

/* ---- the largest scores ---- */

static void max_of_block(const Problem *p, const Block *rows, real *scratch) {
    real *q = scratch, *score = q + p->d * LANES, max[LANES] = {0};
    pack_lanes(p, rows, p->q, (real)p->attr->scale, q);
    for (int64_t tile = rows->begin / KEYS; tile * KEYS < rows->end; tile++) {
        const Range keys = tile_keys(rows, tile);
        dot_keys(key_rows(p, p->k, rows, keys, NULL), p->d, keys, LANES, q, score);
        mask(rows, keys, LANES, score);
        for (int64_t j = 0; j < keys.end - keys.first; j++)
            for (int l = 0; l < LANES; l++)
                if (score[j * LANES + l] > max[l]) max[l] = score[j * LANES + l];
    }
    double *of = (double *)p->call->out[0]->data + p->attr->first_head + rows->group * p->r;
    for (int64_t l = 0; l < rows->n; l++) {
        double *head = of + (rows->first_row + l) / p->s;
        if ((double)max[l] > *head) *head = (double)max[l];
    }
}

/* Computes the largest scores of some groups. A unit of work is one group in all samples, because a head has
 * one maximum over all samples. */
static void max_of_groups(void *arg, int64_t begin, int64_t end) {
    const Problem *p = arg;
    const size_t bytes = (size_t)((p->d + KEYS) * LANES) * sizeof(real);
    real *scratch = mem_aligned(bytes);
    for (int64_t i = begin * p->b; i < end * p->b; i++)
        for (int64_t index = 0; index < p->blocks; index++) {
            const Block rows = block(p, i % p->b, i / p->b, index);
            max_of_block(p, &rows, scratch);
        }
    free(scratch);
}

void KERNEL(max_score)(const Call *c) {
    Problem p = problem(c, c->in[0], c->in[1], c->in[1], c->in[2], c->in[3]);
    pool_for(c->device->pool, p.g, 1, max_of_groups, &p);
}

/* ---- backward ---- */

typedef struct Gradient {
    Problem p;
    const Tensor *dy, *y, *lse;
    int64_t k_stride, v_stride; /* strides of dk and dv in Buffers */
    RelativeBuckets buckets;
    int64_t n_buckets;
    real *shares; /* [b,g,r,buckets]: each sample's part of dbias; NULL if dbias is not needed */
} Gradient;

typedef struct Buffers {
    real *q, *dy, *dq;                /* [width,LANES] */
    real *q_rows, *dy_rows;           /* [LANES,stride] */
    real *prob, *ds, *factor, *slope; /* [KEYS,LANES] */
    real *dk, *dv;                    /* [t,stride]: sums over a group's query rows */
    real *distances;                  /* [r,span]: sums of ds over a group's query rows, by distance */
    real base[LANES], delta[LANES];
} Buffers;

static real *carve(real **rest, int64_t n) {
    real *x = *rest;
    *rest = x ? x + tile_round_up(n) : NULL;
    return x;
}

/* Sets the buffers' pointers to parts of `memory`, unless `memory` is NULL. Returns the buffers' total number
 * of elements. */
static int64_t buffers_place(const Gradient *g, real *memory, Buffers *u) {
    const Problem *p = &g->p;
    const int64_t sizes[] = {p->d * LANES,        p->dv * LANES,       p->d * LANES,
                             LANES * g->k_stride, LANES * g->v_stride, KEYS * LANES,
                             KEYS * LANES,        KEYS * LANES,        KEYS * LANES,
                             p->t * g->k_stride,  p->t * g->v_stride,  g->shares ? p->r * p->span : 0};
    real **parts[] = {&u->q,  &u->dy,     &u->dq,    &u->q_rows, &u->dy_rows, &u->prob,
                      &u->ds, &u->factor, &u->slope, &u->dk,     &u->dv,      &u->distances};
    int64_t total = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        *parts[i] = memory ? carve(&memory, sizes[i]) : NULL;
        total += tile_round_up(sizes[i]);
    }
    return total;
}

static void load_block(const Gradient *g, const Block *rows, Buffers *u) {
    const Problem *p = &g->p;
    const real scale = (real)p->attr->scale;
    pack_lanes(p, rows, p->q, scale, u->q);
    pack_lanes(p, rows, g->dy, 1, u->dy);
    pack_rows(p, rows, p->q, scale, u->q_rows, g->k_stride);
    pack_rows(p, rows, g->dy, 1, u->dy_rows, g->v_stride);
    memset(u->dq, 0, (size_t)(p->d * LANES) * sizeof(real));
    const real *lse = reals(g->lse) + (rows->sample * p->g + rows->group) * p->rows + rows->first_row;
    for (int64_t l = 0; l < LANES; l++) {
        u->base[l] = l < rows->n && lse[l] != -(real)INFINITY ? lse[l] : 0;
        u->delta[l] = 0;
        const real *y = l < rows->n ? lane_row(p, rows, g->y, l) : NULL;
        for (int64_t c = 0; y && c < p->dv; c++) u->delta[l] += u->dy[c * LANES + l] * y[c];
    }
}

/* For each key, adds the sum over lanes of w[key,lane] * (the lane's row of x [lanes,stride]) to the key's row
 * of out [keys,stride]. */
static void add_lanes(Range keys, const real *w, const real *x, int64_t stride, real *out) {
    tile_gemm((Tile){.m = keys.end - keys.first,
                     .n = stride,
                     .k = LANES,
                     .a = w,
                     .a_row = LANES,
                     .a_col = 1,
                     .b = x,
                     .ldb = stride,
                     .c = out + keys.first * stride,
                     .ldc = stride});
}

static void backward_tile(const Gradient *g, const Block *rows, Range keys, Buffers *u) {
    const Problem *p = &g->p;
    const bool drop = p->attr->dropout.rate > 0, caps = p->attr->softcap != 0;
    const Rows k = key_rows(p, p->k, rows, keys, NULL), v = key_rows(p, p->v, rows, keys, NULL);
    dot_keys(k, p->d, keys, LANES, u->q, u->prob);
    cap_scores(p, keys, u->prob);
    add_bias(p, rows, keys, u->prob);
    mask(rows, keys, LANES, u->prob);
    if (caps) cap_slopes(p, keys, u->prob, u->slope);
    dot_keys(v, p->dv, keys, LANES, u->dy, u->ds);
    if (drop) {
        draw(p, rows, keys, u->factor);
        multiply(u->ds, u->factor, keys);
    }
    for (int64_t j = 0; j < keys.end - keys.first; j++)
#pragma omp simd
        for (int l = 0; l < LANES; l++) {
            const real prob = vector_exp(u->prob[j * LANES + l] - u->base[l]);
            u->prob[j * LANES + l] = prob;
            u->ds[j * LANES + l] = prob * (u->ds[j * LANES + l] - u->delta[l]);
        }
    if (g->shares) add_distances(p, rows, keys, u->ds, u->distances);
    if (caps) multiply(u->ds, u->slope, keys);
    if (drop) multiply(u->prob, u->factor, keys);
    add_keys(k, p->d, keys, LANES, u->ds, u->dq);
    add_lanes(keys, u->ds, u->q_rows, g->k_stride, u->dk);
    add_lanes(keys, u->prob, u->dy_rows, g->v_stride, u->dv);
}

static void store_keys(const Problem *p, const Tensor *out, int64_t sample, int64_t group, const real *sum,
                       int64_t stride) {
    for (int64_t j = 0; out && j < p->t; j++)
        store_row(head(out, sample, group) + j * out->stride[0], sum + j * stride, 1, tensor_width(out), 1,
                  accumulates(out));
}

static void store_share(const Gradient *g, int64_t sample, int64_t group, const real *distances) {
    const Problem *p = &g->p;
    real *share = g->shares + (sample * p->g + group) * p->r * g->n_buckets;
    for (int64_t r = 0; r < p->r; r++)
        for (int64_t i = 0; i < p->span; i++)
            share[r * g->n_buckets + relative_bucket(&g->buckets, i - p->last_query)] +=
                distances[r * p->span + i];
}

static void backward_group(const Gradient *g, int64_t sample, int64_t group, Buffers *u) {
    const Problem *p = &g->p;
    Tensor *const *out = p->call->out;
    memset(u->dk, 0, (size_t)(p->t * g->k_stride) * sizeof(real));
    memset(u->dv, 0, (size_t)(p->t * g->v_stride) * sizeof(real));
    if (g->shares) memset(u->distances, 0, (size_t)(p->r * p->span) * sizeof(real));
    for (int64_t index = 0; index < p->blocks; index++) {
        const Block rows = block(p, sample, group, index);
        load_block(g, &rows, u);
        for (int64_t tile = rows.begin / KEYS; tile * KEYS < rows.end; tile++)
            backward_tile(g, &rows, tile_keys(&rows, tile), u);
        for (int64_t l = 0; out[0] && l < rows.n; l++)
            store_row(lane_row(p, &rows, out[0], l), u->dq + l, LANES, p->d, (real)p->attr->scale,
                      accumulates(out[0]));
    }
    store_keys(p, out[1], sample, group, u->dk, g->k_stride);
    store_keys(p, out[2], sample, group, u->dv, g->v_stride);
    if (g->shares) store_share(g, sample, group, u->distances);
}

static void attention_backward(void *arg, int64_t begin, int64_t end) {
    const Gradient *g = arg;
    Buffers u;
    const size_t bytes = (size_t)buffers_place(g, NULL, &u) * sizeof(real);
    real *memory = mem_aligned(bytes);
    memset(memory, 0, bytes);
    buffers_place(g, memory, &u);
    for (int64_t i = begin; i < end; i++) backward_group(g, i / g->p.g, i % g->p.g, &u);
    free(memory);
}

static void put_bias_gradient(const Gradient *g, Tensor *dbias) {
    const int64_t heads = g->p.g * g->p.r, first = g->p.attr->first_local, n = dbias->dim[1];
    for (int64_t i = 0; i < tensor_count(dbias); i++) {
        const int64_t head = i % n - first;
        real *out = &reals(dbias)[i];
        if (!accumulates(dbias)) *out = 0;
        for (int64_t b = 0; head >= 0 && head < heads && b < g->p.b; b++)
            *out += g->shares[(b * heads + head) * g->n_buckets + i / n];
    }
}

void KERNEL(attention_grad)(const Call *c) {
    Gradient g = {.p = problem(c, c->in[1], c->in[2], c->in[3], c->in[6], c->in[7]),
                  .dy = c->in[0],
                  .y = c->in[4],
                  .lse = c->in[5]};
    Tensor *dbias = c->out[3];
    g.k_stride = tile_round_up(g.p.d), g.v_stride = tile_round_up(g.p.dv);
    find_distances(&g.p, c->in[8]);
    if (dbias) {
        g.buckets = buckets_of(&g.p, dbias), g.n_buckets = dbias->dim[0];
        g.shares = mem_zero((size_t)(g.p.b * g.p.g * g.p.r * g.n_buckets), sizeof *g.shares);
    }
    pool_for(c->device->pool, g.p.b * g.p.g, grain_rows(g.p.rows * g.p.t * (g.p.d + g.p.dv)),
             attention_backward, &g);
    if (dbias) put_bias_gradient(&g, dbias);
    free(g.shares), free(g.p.bias);
}
