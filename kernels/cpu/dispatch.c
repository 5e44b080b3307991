/* Copies tokens to rows grouped by expert, and sums the rows of each token, like Megatron-LM
 * core/transformer/moe/moe_utils.py (permute, unpermute, apply_router_token_dropping). An expert's tokens
 * keep their order. A token's copies are summed in the order of the token's experts, so the order of
 * summation is fixed. row, copy and offset are written; y, x, dx and dp are written or accumulated. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/cpu/vector_math.h"

/* ---- plan ---- */

typedef struct Ranked {
    real prob;
    int64_t copy;
} Ranked;

/* Orders copies for qsort: copies with larger probabilities come first; if probabilities are equal, the
 * earlier token comes first. */
static int by_prob(const void *a, const void *b) {
    const Ranked *x = a, *y = b;
    if (x->prob != y->prob) return x->prob > y->prob ? -1 : 1;
    return x->copy < y->copy ? -1 : x->copy > y->copy;
}

static int by_copy(const void *a, const void *b) {
    const Ranked *x = a, *y = b;
    return x->copy < y->copy ? -1 : x->copy > y->copy;
}

/* Moves the expert's kept copies to the front in their original order. Returns the number of kept copies. */
static int64_t keep(const DispatchAttr *a, Ranked *copies, int64_t n) {
    if (a->capacity <= 0 || n <= a->capacity) return n;
    if (!a->by_position) {
        qsort(copies, (size_t)n, sizeof *copies, by_prob);
        qsort(copies, (size_t)a->capacity, sizeof *copies, by_copy);
    }
    return a->capacity;
}

/* Returns the index of copy i's expert among this call's experts, or -1 if the call does not include the
 * expert. */
static int64_t place(const Call *c, int64_t experts, int64_t i) {
    const DispatchAttr *a = c->attr;
    const int64_t expert = int64s(c->in[1])[i], e = expert - a->first;
    if (expert < 0 || (a->local && (e < 0 || e >= experts))) return -1;
    CHECK(e < experts, "copy %lld is for expert %lld, but there are %lld experts", (long long)i,
          (long long)expert, (long long)experts);
    return e;
}

/* Sorts all copies by expert, and keeps the order of each expert's copies. The copies for expert e begin at
 * first[e]. */
static Ranked *sort_by_expert(const Call *c, int64_t experts, int64_t *first) {
    const int64_t n = tensor_count(c->in[1]);
    const real *prob = c->in[0] ? reals(c->in[0]) : NULL;
    Ranked *sorted = mem_alloc((size_t)(n + 1) * sizeof *sorted);
    memset(first, 0, (size_t)(experts + 1) * sizeof *first);
    for (int64_t i = 0; i < n; i++) first[place(c, experts, i) + 1]++;
    first[0] = 0;
    for (int64_t e = 0; e < experts; e++) first[e + 1] += first[e];
    int64_t *next = mem_alloc((size_t)(experts + 1) * sizeof *next);
    memcpy(next, first, (size_t)(experts + 1) * sizeof *next);
    for (int64_t i = 0; i < n; i++) {
        const int64_t e = place(c, experts, i);
        if (e >= 0) sorted[next[e]++] = (Ranked){prob ? prob[i] : 0, i};
    }
    free(next);
    return sorted;
}

void KERNEL(dispatch)(const Call *c) {
    const DispatchAttr *a = c->attr;
    const int64_t experts = c->out[2]->dim[0] - 1, rows = c->out[1]->dim[0], copies = tensor_count(c->in[1]);
    int64_t *row = int64s(c->out[0]), *copy = int64s(c->out[1]), *offset = int64s(c->out[2]), end = 0;
    int64_t *first = mem_alloc((size_t)(experts + 1) * sizeof *first);
    Ranked *sorted = sort_by_expert(c, experts, first);
    for (int64_t i = 0; i < copies; i++) row[i] = -1;
    for (int64_t i = 0; i < rows; i++) copy[i] = -1;
    for (int64_t e = 0; e < experts; e++) {
        const int64_t kept = keep(a, sorted + first[e], first[e + 1] - first[e]);
        offset[e] = end;
        for (int64_t i = 0; i < kept; i++) {
            const int64_t which = sorted[first[e] + i].copy;
            row[which] = end + i, copy[end + i] = which;
        }
        end += a->pad ? a->capacity : kept;
    }
    offset[experts] = end;
    CHECK(end <= rows, "the experts need %lld rows, but there is room for only %lld", (long long)end,
          (long long)rows);
    free(sorted), free(first);
}

void KERNEL(drop)(const Call *c) {
    const int64_t *expert = int64s(c->in[0]), *row = int64s(c->in[1]);
    for (int64_t i = 0; i < tensor_count(c->in[0]); i++) int64s(c->out[0])[i] = row[i] < 0 ? -1 : expert[i];
}

void KERNEL(arrival)(const Call *c) {
    const ArrivalAttr *a = c->attr;
    const int64_t ranks = c->in[0]->dim[0], n = c->in[0]->dim[1], rows = c->out[0]->dim[0] / a->etp;
    for (int64_t part = 0; part < a->etp; part++) {
        int64_t *expert = int64s(c->out[0]) + part * rows, at = 0;
        for (int64_t rank = part; rank < ranks; rank += a->etp) {
            const int64_t *offset = int64s(c->in[0]) + rank * n;
            for (int64_t e = a->first; e < a->first + a->experts; e++)
                for (int64_t i = offset[e]; i < offset[e + 1]; i++) expert[at++] = e;
        }
        CHECK(at <= rows, "%lld rows arrive, but there is room for only %lld", (long long)at,
              (long long)rows);
        while (at < rows) expert[at++] = -1;
    }
}

/* ---- rows ---- */

static void put_row(const Tensor *t, int64_t row, const real *from, int64_t n) {
    real *to = reals(t) + row * n;
    for (int64_t i = 0; i < n; i++) to[i] = accumulates(t) ? to[i] + from[i] : from[i];
}

static void permute_rows(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const PermuteAttr *a = c->attr;
    const int64_t n = tensor_width(c->in[0]), *copy = int64s(c->in[1]);
    for (int64_t r = begin; r < end; r++) {
        if (copy[r] >= 0)
            put_row(c->out[0], r, reals(c->in[0]) + copy[r] / a->copies * n, n);
        else if (!accumulates(c->out[0]))
            memset(reals(c->out[0]) + r * n, 0, (size_t)n * sizeof(real));
    }
}

void KERNEL(permute)(const Call *c) {
    pool_for(c->device->pool, c->out[0]->dim[0], grain_rows(tensor_width(c->in[0])), permute_rows, (void *)c);
}

static void unpermute_rows(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const PermuteAttr *a = c->attr;
    const int64_t n = tensor_width(c->in[0]), *row = int64s(c->in[1]);
    real *sum = mem_alloc((size_t)(n + 1) * sizeof *sum);
    for (int64_t r = begin; r < end; r++) {
        for (int64_t i = 0; i < n; i++) sum[i] = 0;
        for (int64_t j = r * a->copies; j < (r + 1) * a->copies; j++) {
            const real *y = reals(c->in[0]) + (row[j] < 0 ? 0 : row[j]) * n;
            for (int64_t i = 0; row[j] >= 0 && i < n; i++) sum[i] += y[i];
        }
        put_row(c->out[0], r, sum, n);
    }
    free(sum);
}

void KERNEL(unpermute)(const Call *c) {
    const PermuteAttr *a = c->attr;
    pool_for(c->device->pool, tensor_rows(c->out[0]), grain_rows(a->copies * tensor_width(c->out[0])),
             unpermute_rows, (void *)c);
}

/* ---- scale ---- */

static real factor(const Call *c, const Tensor *p, int64_t row) {
    const ScaleAttr *a = c->attr;
    return a->sigmoid ? vector_sigmoid(reals(p)[row]) : reals(p)[row];
}

static void scale(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const int64_t n = tensor_width(c->in[0]);
    for (int64_t r = begin; r < end; r++) {
        const real *x = reals(c->in[0]) + r * n, by = factor(c, c->in[1], r);
        real *y = reals(c->out[0]) + r * n;
        for (int64_t i = 0; i < n; i++) y[i] = x[i] * by;
    }
}

void KERNEL(scale_rows)(const Call *c) {
    pool_for(c->device->pool, tensor_rows(c->in[0]), grain_rows(tensor_width(c->in[0])), scale, (void *)c);
}

static void scale_grad(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const ScaleAttr *a = c->attr;
    const Tensor *dx = c->out[0], *dp = c->out[1];
    const int64_t n = tensor_width(c->in[0]);
    for (int64_t r = begin; r < end; r++) {
        const real *dy = reals(c->in[0]) + r * n, *x = reals(c->in[1]) + r * n, by = factor(c, c->in[2], r);
        real dot = 0;
        for (int64_t i = 0; i < n; i++) dot += dy[i] * x[i];
        if (a->sigmoid) dot *= by * (1 - by);
        if (dp) put_row(dp, r, &dot, 1);
        for (int64_t i = 0; dx && i < n; i++) {
            real *d = reals(dx) + r * n + i;
            *d = accumulates(dx) ? *d + dy[i] * by : dy[i] * by;
        }
    }
}

void KERNEL(scale_rows_grad)(const Call *c) {
    pool_for(c->device->pool, tensor_rows(c->in[0]), grain_rows(2 * tensor_width(c->in[0])), scale_grad,
             (void *)c);
}
