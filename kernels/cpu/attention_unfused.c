/* Reference attention, computed directly from the definition, one element at a time and with all
 * probabilities in memory. Tests compare attention.c with this file. The two files share no code. probs
 * contains the probabilities before dropout. With sinks, the last probability of a row belongs to the sink, a
 * key with value 0 that is never dropped. y and probs are written; dq, dk, dv, dsink and dbias are written or
 * accumulated. */
#include <stdlib.h>

#include "base/mem.h"
#include "base/philox.h"
#include "kernels/cpu/real.h"
#include "kernels/relative_buckets.h"

typedef struct Operands {
    const Call *call;
    const AttentionAttr *attr;
    const Tensor *q, *k, *v, *probs, *dy;
    const Tensor *first_key, *lengths; /* read only by the forward pass */
    /* [g,r]: the heads' sinks; NULL in the backward pass, or if there are no sinks */
    const real *sink;
    const Tensor *bias;
    RelativeBuckets buckets;
    /* [b,g,r] and [b,g,r,buckets]: each sample's contributions to dsink and dbias; NULL if not needed */
    real *sink_sum, *bias_sum;
    int64_t n_buckets;
} Operands;

/* A query: position i of head (group, r) of a sample. */
typedef struct Query {
    int64_t sample, group, r, i;
} Query;

static real *row(const Tensor *x, int64_t i, int64_t sample, int64_t group, int64_t r) {
    return reals(x) + i * x->stride[0] + sample * x->stride[1] + group * x->stride[2] + r * x->stride[3];
}

static real *query_row(const Tensor *x, Query q) { return row(x, q.i, q.sample, q.group, q.r); }

static int64_t head_of(const Operands *o, Query q) { return q.group * o->q->dim[3] + q.r; }

static real *probs_row(const Operands *o, Query q) {
    const Tensor *x = o->probs;
    return reals(x) + (((q.sample * x->dim[1] + q.group) * x->dim[2] + q.r) * x->dim[3] + q.i) * x->dim[4];
}

static bool visible(const Operands *o, Query q, int64_t key) {
    const AttentionAttr *a = o->attr;
    const int64_t at = slice_position(&a->key, key), query = slice_position(&a->query, q.i),
                  distance = at - query;
    if (a->window_left != WINDOW_OFF && distance < -a->window_left) return false;
    if (a->window_right != WINDOW_OFF && distance > a->window_right) return false;
    if (o->lengths && at >= int64s(o->lengths)[q.sample]) return false;
    const int64_t first = o->first_key ? int64s(o->first_key)[q.sample * o->first_key->dim[1] + q.i] : 0;
    return at >= first && (!a->chunk_size || (at - first) / a->chunk_size >= (query - first) / a->chunk_size);
}

static real keep(const Operands *o, Query q, int64_t key) {
    const AttentionAttr *a = o->attr;
    const DropoutAttr *d = &a->dropout;
    if (d->rate == 0) return 1;
    const int64_t head = a->first_head + head_of(o, q);
    const int64_t line =
        ((d->first_sample + q.sample) * a->heads + head) * d->seq_total + slice_position(&a->query, q.i);
    const int64_t index = line * d->seq_total + slice_position(&a->key, key);
    return philox_u32(d->seed, d->site, (uint64_t)index) >= d->rate * 0x1p32 ? (real)(1 / (1 - d->rate)) : 0;
}

static real dot(const real *a, const real *b, int64_t n) {
    real sum = 0;
    for (int64_t c = 0; c < n; c++) sum += a[c] * b[c];
    return sum;
}

static void add_scaled(real *y, real a, const real *x, int64_t n) {
    for (int64_t c = 0; c < n; c++) y[c] += a * x[c];
}

/* Returns the scaled score of a query and a key, before the soft cap. */
static real raw_score(const Operands *o, Query q, int64_t key) {
    return (real)o->attr->scale *
           dot(query_row(o->q, q), row(o->k, key, q.sample, q.group, 0), tensor_width(o->k));
}

static int64_t bucket_of(const Operands *o, Query q, int64_t key) {
    const AttentionAttr *a = o->attr;
    return relative_bucket(&o->buckets, slice_position(&a->key, key) - slice_position(&a->query, q.i));
}

static real bias_of(const Operands *o, Query q, int64_t key) {
    const AttentionAttr *a = o->attr;
    if (a->alibi != 0)
        return (real)alibi_bias(a, head_of(o, q),
                                slice_position(&a->key, key) - slice_position(&a->query, q.i));
    if (!o->bias) return 0;
    return reals(o->bias)[bucket_of(o, q, key) * o->bias->dim[1] + a->first_local + head_of(o, q)];
}

static real score_of(const Operands *o, Query q, int64_t key) {
    const real x = raw_score(o, q, key), cap = (real)o->attr->softcap;
    return (cap == 0 ? x : cap * REAL_MATH(tanh)(x / cap)) + bias_of(o, q, key);
}

/* Returns the derivative of a score with respect to the raw score. */
static real score_slope(const Operands *o, Query q, int64_t key) {
    const real cap = (real)o->attr->softcap;
    if (cap == 0) return 1;
    const real t = REAL_MATH(tanh)(raw_score(o, q, key) / cap);
    return 1 - t * t;
}

static void forward_row(const Operands *o, Query q) {
    const int64_t t = o->k->dim[0], width = tensor_width(o->v);
    real *prob = probs_row(o, q), *y = query_row(o->call->out[0], q), sum = 0,
         max = o->sink ? o->sink[head_of(o, q)] : -(real)INFINITY;
    for (int64_t j = 0; j < t; j++) {
        prob[j] = visible(o, q, j) ? score_of(o, q, j) : -(real)INFINITY;
        max = prob[j] > max ? prob[j] : max;
    }
    for (int64_t j = 0; j < t; j++) {
        prob[j] = visible(o, q, j) ? REAL_MATH(exp)(prob[j] - max) : 0;
        sum += prob[j];
    }
    if (o->sink) {
        prob[t] = REAL_MATH(exp)(o->sink[head_of(o, q)] - max);
        sum += prob[t];
        prob[t] /= sum;
    }
    for (int64_t c = 0; c < width; c++) y[c] = 0;
    for (int64_t j = 0; j < t; j++) {
        prob[j] = sum == 0 ? 0 : prob[j] / sum;
        add_scaled(y, prob[j] * keep(o, q, j), row(o->v, j, q.sample, q.group, 0), width);
    }
}

static void forward(void *arg, int64_t begin, int64_t end) {
    const Operands *o = arg;
    const int64_t g = o->q->dim[2];
    for (int64_t pair = begin; pair < end; pair++)
        for (int64_t r = 0; r < o->q->dim[3]; r++)
            for (int64_t i = 0; i < o->q->dim[0]; i++) forward_row(o, (Query){pair / g, pair % g, r, i});
}

static int64_t grain(const Operands *o) {
    return grain_rows(o->q->dim[0] * o->q->dim[3] * o->k->dim[0] * o->q->dim[4]);
}

void KERNEL(attention_unfused)(const Call *c) {
    const AttentionAttr *a = c->attr;
    Operands o = {.call = c,
                  .attr = a,
                  .sink = c->in[6] ? reals(c->in[6]) + a->first_local : NULL,
                  .q = c->in[0],
                  .k = c->in[1],
                  .v = c->in[2],
                  .probs = c->out[1],
                  .first_key = c->in[3],
                  .lengths = c->in[4],
                  .bias = c->in[5]};
    if (o.bias)
        o.buckets = relative_buckets_make(o.bias->dim[0], a->bias_max_distance, a->bias_bidirectional);
    pool_for(c->device->pool, o.q->dim[1] * o.q->dim[2], grain(&o), forward, &o);
}

/* Returns the index in [b,g,r] of a query's head. */
static int64_t share_of(const Operands *o, Query q) {
    return q.sample * o->q->dim[2] * o->q->dim[3] + head_of(o, q);
}

static void backward_row(const Operands *o, Query q, real *ds) {
    const int64_t t = o->k->dim[0], d = tensor_width(o->k), dv = tensor_width(o->v);
    Tensor *const *out = o->call->out;
    const real *prob = probs_row(o, q), *dy = query_row(o->dy, q), scale = (real)o->attr->scale;
    real delta = 0;
    for (int64_t j = 0; j < t; j++) {
        ds[j] = keep(o, q, j) * dot(dy, row(o->v, j, q.sample, q.group, 0), dv);
        delta += prob[j] * ds[j];
    }
    for (int64_t j = 0; j < t; j++) ds[j] = prob[j] * (ds[j] - delta);
    real *bias_sum = o->bias_sum ? o->bias_sum + share_of(o, q) * o->n_buckets : NULL;
    for (int64_t j = 0; bias_sum && j < t; j++) bias_sum[bucket_of(o, q, j)] += ds[j];
    for (int64_t j = 0; j < t; j++) ds[j] *= scale * score_slope(o, q, j);
    for (int64_t j = 0; j < t; j++) {
        if (out[0]) add_scaled(query_row(out[0], q), ds[j], row(o->k, j, q.sample, q.group, 0), d);
        if (out[1]) add_scaled(row(out[1], j, q.sample, q.group, 0), ds[j], query_row(o->q, q), d);
        if (out[2]) add_scaled(row(out[2], j, q.sample, q.group, 0), prob[j] * keep(o, q, j), dy, dv);
    }
    if (o->sink_sum) o->sink_sum[share_of(o, q)] -= prob[t] * delta;
}

static void clear(const Tensor *x, int64_t sample, int64_t group) {
    if (!x || accumulates(x)) return;
    for (int64_t i = 0; i < x->dim[0]; i++)
        for (int64_t r = 0; r < x->dim[3]; r++)
            for (int64_t c = 0; c < x->dim[4]; c++) row(x, i, sample, group, r)[c] = 0;
}

static void attention_unfused_backward(void *arg, int64_t begin, int64_t end) {
    const Operands *o = arg;
    const int64_t g = o->q->dim[2];
    real *ds = mem_alloc((size_t)o->k->dim[0] * sizeof(real));
    for (int64_t pair = begin; pair < end; pair++) {
        for (int i = 0; i < 3; i++) clear(o->call->out[i], pair / g, pair % g);
        for (int64_t r = 0; r < o->q->dim[3]; r++)
            for (int64_t i = 0; i < o->q->dim[0]; i++) backward_row(o, (Query){pair / g, pair % g, r, i}, ds);
    }
    free(ds);
}

/* Sums the gradients of the sinks over the samples in order. */
static void put_sink_gradients(const Operands *o, Tensor *dsink) {
    const int64_t heads = o->q->dim[2] * o->q->dim[3], first = o->attr->first_local;
    for (int64_t i = 0; i < tensor_count(dsink); i++) {
        real *out = &reals(dsink)[i];
        if (!accumulates(dsink)) *out = 0;
        for (int64_t b = 0; i >= first && i < first + heads && b < o->q->dim[1]; b++)
            *out += o->sink_sum[b * heads + i - first];
    }
}

static void put_bias_gradients(const Operands *o, Tensor *dbias) {
    const int64_t heads = o->q->dim[2] * o->q->dim[3], n = dbias->dim[1], first = o->attr->first_local;
    for (int64_t i = 0; i < tensor_count(dbias); i++) {
        const int64_t bucket = i / n, head = i % n - first;
        real *out = &reals(dbias)[i];
        if (!accumulates(dbias)) *out = 0;
        for (int64_t b = 0; head >= 0 && head < heads && b < o->q->dim[1]; b++)
            *out += o->bias_sum[(b * heads + head) * o->n_buckets + bucket];
    }
}

void KERNEL(attention_unfused_grad)(const Call *c) {
    Operands o = {.call = c,
                  .attr = c->attr,
                  .q = c->in[1],
                  .k = c->in[2],
                  .v = c->in[3],
                  .probs = c->in[4],
                  .dy = c->in[0]};
    const size_t sums = (size_t)(o.q->dim[1] * o.q->dim[2] * o.q->dim[3]);
    const Tensor *dbias = c->out[4];
    if (c->out[3]) o.sink_sum = mem_zero(sums, sizeof *o.sink_sum);
    if (dbias) {
        o.n_buckets = dbias->dim[0];
        o.buckets = relative_buckets_make(o.n_buckets, o.attr->bias_max_distance, o.attr->bias_bidirectional);
        o.bias_sum = mem_zero(sums * (size_t)o.n_buckets, sizeof *o.bias_sum);
    }
    pool_for(c->device->pool, o.q->dim[1] * o.q->dim[2], grain(&o), attention_unfused_backward, &o);
    if (c->out[3]) put_sink_gradients(&o, c->out[3]);
    if (dbias) put_bias_gradients(&o, c->out[4]);
    free(o.sink_sum), free(o.bias_sum);
}
