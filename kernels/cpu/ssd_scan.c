/* The selective scan of Mamba-2 (Dao and Gu, 2024) in chunks of positions. For one head, with the state S
 * [p,n], which is 0 at the start of a document:
 *
 *   delta[t] = softplus(dt[t] + dt_bias), clamped to the limits
 *   a[t]     = -exp(a_log) delta[t]
 *   S[t]     = exp(a[t]) S[t-1] + delta[t] x[t] B[t]^T
 *   y[t]     = S[t] C[t] + d x[t]
 *
 * A chunk is computed from the state S before its first position. c[t] is the sum of a over the chunk's positions up
 * to t, and i, j are positions of the chunk with j <= i that are in the same document:
 *
 *   y[i] = sum over j of exp(c[i] - c[j]) delta[j] (C[i].B[j]) x[j] + exp(c[i]) S C[i] + d x[i]
 *   S    = exp(c[last]) S + sum over j of exp(c[last] - c[j]) delta[j] x[j] B[j]^T
 *
 * No exponent is positive. Terms with S count only while the chunk's first document lasts. The backward pass visits
 * chunks in reverse order. R is the gradient of the state after a chunk:
 *
 *   W[i,j] = exp(c[i] - c[j]) delta[j] (C[i].B[j]) (dy[i].x[j])
 *   u[j]   = sum over i of exp(c[i] - c[j]) (C[i].B[j]) dy[i] + exp(c[last] - c[j]) R B[j]
 *   dx[j]  = delta[j] u[j] + d dy[j],  ddelta[j] = x[j].u[j] - exp(a_log) da[j]
 *   dB[j]  = sum over i of exp(c[i] - c[j]) delta[j] (dy[i].x[j]) C[i] + exp(c[last] - c[j]) delta[j] R^T x[j]
 *   dC[i]  = sum over j of exp(c[i] - c[j]) delta[j] (dy[i].x[j]) B[j] + exp(c[i]) S^T dy[i]
 *   da[t]  = sum of W[i,j] over j < t <= i, and the terms of S and R that contain exp(a[t])
 *   R      = exp(c[last]) R + sum over i of exp(c[i]) dy[i] C[i]^T
 *
 * da is a sum without cancellation, unlike the difference of sums over the rows and columns of W. y is
 * written; gradients are written or accumulated. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/cpu/softplus.h"
#include "kernels/cpu/vectors.h"

typedef struct Scan {
    const ScanAttr *a;
    const real *x, *dt_bias, *a_log, *d;
    const Tensor *dt;
    const int64_t *start;       /* NULL: no documents */
    int64_t s, b, heads, width; /* width of a row of x */
} Scan;

static Scan scan_of(const ScanAttr *a, Tensor *const *in) {
    const Tensor *x = in[0];
    return (Scan){.a = a,
                  .x = reals(x),
                  .dt = in[1],
                  .dt_bias = reals(in[2]),
                  .a_log = reals(in[3]),
                  .d = reals(in[4]),
                  .start = in[5] ? int64s(in[5]) : NULL,
                  .s = x->dim[0],
                  .b = x->dim[1],
                  .heads = tensor_width(in[1]),
                  .width = x->dim[2]};
}

/* One head of one sample, with the memory for a chunk. */
typedef struct Head {
    const Scan *o;
    int64_t sample, head, group, first, end; /* the chunk is [first, end) */
    real *delta, *sum;                       /* [chunk]: delta and c */
    const real *scores; /* [s,chunk]: row i holds C[i].B[j] for each j in the chunk of i */
} Head;

static const real *row_of(const Head *h, int64_t t) {
    return h->o->x + (t * h->o->b + h->sample) * h->o->width;
}
static const real *x_of(const Head *h, int64_t t) { return row_of(h, t) + h->head * h->o->a->head_dim; }
static const real *b_of(const Head *h, int64_t t) {
    return row_of(h, t) + h->o->heads * h->o->a->head_dim + h->group * h->o->a->state;
}
static const real *c_of(const Head *h, int64_t t) { return b_of(h, t) + h->o->a->groups * h->o->a->state; }

static int64_t start_of(const Head *h, int64_t t) {
    return h->o->start ? h->o->start[h->sample * h->o->s + t] : 0;
}
/* Returns the first position of the chunk that is in the document of position t. */
static int64_t first_of(const Head *h, int64_t t) {
    const int64_t start = start_of(h, t);
    return start > h->first ? start : h->first;
}
/* Returns whether position t depends on the state before the chunk. */
static bool carries(const Head *h, int64_t t) { return start_of(h, t) < h->first; }

/* Returns dt + dt_bias at position t. */
static real raw_step(const Head *h, int64_t t) {
    const Tensor *dt = h->o->dt;
    return reals(dt)[t * dt->stride[0] + h->sample * dt->stride[1] + h->head] + h->o->dt_bias[h->head];
}

static real decay_rate(const Head *h) { return -REAL_MATH(exp)(h->o->a_log[h->head]); }

/* Moves to chunk number `chunk`, and computes its delta and c. */
static void enter_chunk(Head *h, int64_t chunk) {
    const Scan *o = h->o;
    const real rate = decay_rate(h), least = (real)o->a->least, most = (real)o->a->most;
    real sum = 0;
    h->first = chunk * o->a->chunk;
    h->end = h->first + o->a->chunk < o->s ? h->first + o->a->chunk : o->s;
    for (int64_t t = h->first; t < h->end; t++) {
        const real step = softplus(raw_step(h, t)), delta = step < least ? least : step > most ? most : step;
        sum += rate * delta;
        h->delta[t - h->first] = delta;
        h->sum[t - h->first] = sum;
    }
}

/* exp(c[i] - c[j]) */
static real decay(const Head *h, int64_t i, int64_t j) {
    return REAL_MATH(exp)(h->sum[i - h->first] - h->sum[j - h->first]);
}
/* exp(c[t]) */
static real decay_from_start(const Head *h, int64_t t) { return REAL_MATH(exp)(h->sum[t - h->first]); }

/* Replaces the state before the chunk with the state after it. */
static void advance(const Head *h, real *state) {
    const int64_t last = h->end - 1, p = h->o->a->head_dim, n = h->o->a->state;
    const real keep = carries(h, last) ? decay_from_start(h, last) : 0;
    for (int64_t i = 0; i < p * n; i++) state[i] *= keep;
    for (int64_t j = first_of(h, last); j <= last; j++)
        add_product(state, decay(h, last, j) * h->delta[j - h->first], x_of(h, j), b_of(h, j), p, n);
}

static void chunk_outputs(const Head *h, const real *state, real *y) {
    const Scan *o = h->o;
    const int64_t p = o->a->head_dim, n = o->a->state;
    for (int64_t i = h->first; i < h->end; i++) {
        real *out = y + (i * o->b + h->sample) * o->heads * p + h->head * p;
        const real *x = x_of(h, i), *scores = h->scores + i * o->a->chunk;
        for (int64_t k = 0; k < p; k++) out[k] = o->d[h->head] * x[k];
        for (int64_t j = first_of(h, i); j <= i; j++)
            add_scaled(out, scores[j - h->first] * decay(h, i, j) * h->delta[j - h->first], x_of(h, j), p);
        if (!carries(h, i)) continue;
        const real kept = decay_from_start(h, i);
        for (int64_t k = 0; k < p; k++) out[k] += kept * dot(state + k * n, c_of(h, i), n);
    }
}

static int64_t chunks_of(const Scan *o) { return (o->s + o->a->chunk - 1) / o->a->chunk; }

/* Opens a group of a sample, and computes its scores. close_group frees the memory. */
static Head open_group(const Scan *o, int64_t sample, int64_t group) {
    const int64_t q = o->a->chunk;
    real *scores = mem_alloc((size_t)(o->s * q + 1) * sizeof(real));
    Head h = {.o = o,
              .sample = sample,
              .group = group,
              .delta = mem_alloc((size_t)q * sizeof(real)),
              .sum = mem_alloc((size_t)q * sizeof(real)),
              .scores = scores};
    for (int64_t i = 0; i < o->s; i++)
        for (int64_t j = i / q * q; j <= i; j++)
            scores[i * q + j % q] = dot(c_of(&h, i), b_of(&h, j), o->a->state);
    return h;
}

static void close_group(Head *h) { free(h->delta), free(h->sum), free((real *)h->scores); }

/* A unit of work is a group of a sample. */
static void scan_units(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const Scan o = scan_of(c->attr, c->in);
    const int64_t each = o.heads / o.a->groups, size = o.a->head_dim * o.a->state;
    for (int64_t unit = begin; unit < end; unit++) {
        Head h = open_group(&o, unit / o.a->groups, unit % o.a->groups);
        real *state = mem_alloc((size_t)size * sizeof(real));
        for (h.head = h.group * each; h.head < (h.group + 1) * each; h.head++) {
            memset(state, 0, (size_t)size * sizeof(real));
            for (int64_t chunk = 0; chunk < chunks_of(&o); chunk++) {
                enter_chunk(&h, chunk);
                chunk_outputs(&h, state, reals(c->out[0]));
                advance(&h, state);
            }
        }
        free(state);
        close_group(&h);
    }
}

void KERNEL(ssd_scan)(const Call *c) {
    const ScanAttr *a = c->attr;
    pool_for(c->device->pool, c->in[0]->dim[1] * a->groups, 1, scan_units, (void *)c);
}

/* ---- gradient ---- */

enum { DT_BIAS, A_LOG, D, SUMS }; /* the parameters */

typedef struct Gradient {
    const Call *call;
    Scan scan;
    real *sums; /* [b,heads,SUMS]: each sample's gradients of the parameters */
} Gradient;

/* The gradients of a group, and those of a chunk of one of its heads. */
typedef struct Grads {
    const Gradient *g;
    real *db, *dc;        /* [s,n] */
    real *pairs;          /* [s,chunk]: the sum over heads of exp(c[i] - c[j]) delta[j] (dy[i].x[j]) */
    real *states, *after; /* [chunks,p,n]: the states before all chunks; R */
    real *u, *da;         /* [chunk,p], [chunk] */
    real *below;          /* [chunk]: the sum of W[i,j] over the rows i so far */
} Grads;

static const real *dy_of(const Grads *r, const Head *h, int64_t t) {
    const Scan *o = h->o;
    return reals(r->g->call->in[0]) + ((t * o->b + h->sample) * o->heads + h->head) * o->a->head_dim;
}

/* Adds the terms of the pairs (i, j). Rows are visited from last to first, so that row t reads the sums of W
 * over the rows i >= t. */
static void pair_terms(const Grads *r, const Head *h) {
    const int64_t p = h->o->a->head_dim, q = h->o->a->chunk;
    memset(r->below, 0, (size_t)q * sizeof(real));
    for (int64_t i = h->end - 1; i >= h->first; i--) {
        const int64_t from = first_of(h, i);
        const real *dy = dy_of(r, h, i);
        for (int64_t j = from; j <= i; j++) {
            const int64_t k = j - h->first;
            const real kept = decay(h, i, j), score = h->scores[i * q + k] * kept,
                       along = dot(dy, x_of(h, j), p) * h->delta[k];
            r->pairs[i * q + k] += kept * along;
            r->below[k] += score * along;
            add_scaled(r->u + k * p, score, dy, p);
        }
        for (int64_t j = from; j < i; j++) r->da[i - h->first] += r->below[j - h->first];
    }
}

/* Adds the terms of the state before the chunk. */
static void terms_of_state(const Grads *r, const Head *h, const real *state) {
    const int64_t p = h->o->a->head_dim, n = h->o->a->state;
    real later = 0;
    for (int64_t i = h->end - 1; i >= h->first; i--) {
        if (!carries(h, i)) continue;
        const real kept = decay_from_start(h, i), *dy = dy_of(r, h, i), *c = c_of(h, i);
        for (int64_t k = 0; k < p; k++) {
            later += kept * dy[k] * dot(state + k * n, c, n);
            add_scaled(r->dc + i * n, kept * dy[k], state + k * n, n);
        }
        r->da[i - h->first] += later;
    }
}

/* Adds the terms of R, the gradient of the state after the chunk. */
static void terms_of_after(const Grads *r, const Head *h, const real *state) {
    const int64_t p = h->o->a->head_dim, n = h->o->a->state, last = h->end - 1, from = first_of(h, last);
    real earlier = carries(h, last) ? decay_from_start(h, last) * dot(r->after, state, p * n) : 0;
    for (int64_t j = h->first; j <= last; j++) {
        r->da[j - h->first] += earlier;
        if (j < from) continue;
        const real kept = decay(h, last, j), delta = h->delta[j - h->first], *x = x_of(h, j), *b = b_of(h, j);
        for (int64_t k = 0; k < p; k++) {
            const real along = kept * dot(r->after + k * n, b, n);
            r->u[(j - h->first) * p + k] += along;
            earlier += delta * x[k] * along;
            add_scaled(r->db + j * n, kept * delta * x[k], r->after + k * n, n);
        }
    }
}

/* Replaces R with the gradient of the state before the chunk. */
static void retreat(const Grads *r, const Head *h) {
    const int64_t p = h->o->a->head_dim, n = h->o->a->state, last = h->end - 1;
    const real keep = carries(h, last) ? decay_from_start(h, last) : 0;
    for (int64_t i = 0; i < p * n; i++) r->after[i] *= keep;
    for (int64_t i = h->first; i < h->end && carries(h, i); i++)
        add_product(r->after, decay_from_start(h, i), dy_of(r, h, i), c_of(h, i), p, n);
}

/* Writes dx and ddt, and adds to the sample's gradients of the parameters. */
static void finish_chunk(const Grads *r, const Head *h) {
    const Scan *o = h->o;
    const Tensor *dx = r->g->call->out[0], *ddt = r->g->call->out[1];
    const int64_t p = o->a->head_dim;
    const real rate = decay_rate(h);
    real *sums = r->g->sums + (h->sample * o->heads + h->head) * SUMS;
    for (int64_t t = h->first; t < h->end; t++) {
        const real delta = h->delta[t - h->first], *u = r->u + (t - h->first) * p, *dy = dy_of(r, h, t),
                   da = r->da[t - h->first], raw = raw_step(h, t), step = softplus(raw);
        const bool clamped = step < (real)o->a->least || step > (real)o->a->most;
        const real draw = clamped ? 0 : (dot(x_of(h, t), u, p) + rate * da) * softplus_slope(raw);
        sums[DT_BIAS] += draw;
        sums[A_LOG] += da * rate * delta;
        sums[D] += dot(dy, x_of(h, t), p);
        if (ddt) put(ddt, t * ddt->stride[0] + h->sample * ddt->stride[1] + h->head, draw);
        for (int64_t k = 0; dx && k < p; k++)
            put(dx, x_of(h, t) - o->x + k, delta * u[k] + o->d[h->head] * dy[k]);
    }
}

static void head_gradient(const Grads *r, Head *h) {
    const Scan *o = h->o;
    const int64_t size = o->a->head_dim * o->a->state, chunks = chunks_of(o);
    real *state = r->states;
    memset(state, 0, (size_t)size * sizeof(real));
    for (int64_t chunk = 0; chunk + 1 < chunks; chunk++, state += size) {
        memcpy(state + size, state, (size_t)size * sizeof(real));
        enter_chunk(h, chunk);
        advance(h, state + size);
    }
    memset(r->after, 0, (size_t)size * sizeof(real));
    for (int64_t chunk = chunks - 1; chunk >= 0; chunk--) {
        enter_chunk(h, chunk);
        memset(r->u, 0, (size_t)(o->a->chunk * o->a->head_dim) * sizeof(real));
        memset(r->da, 0, (size_t)o->a->chunk * sizeof(real));
        pair_terms(r, h);
        terms_of_state(r, h, r->states + chunk * size);
        terms_of_after(r, h, r->states + chunk * size);
        finish_chunk(r, h);
        retreat(r, h);
    }
}

/* Writes the gradients of B and C after all heads of the group. */
static void finish_group(const Grads *r, const Head *h) {
    const Scan *o = h->o;
    const Tensor *dx = r->g->call->out[0];
    const int64_t n = o->a->state, q = o->a->chunk;
    for (int64_t i = 0; dx && i < o->s; i++)
        for (int64_t j = i / q * q; j <= i; j++) {
            add_scaled(r->dc + i * n, r->pairs[i * q + j % q], b_of(h, j), n);
            add_scaled(r->db + j * n, r->pairs[i * q + j % q], c_of(h, i), n);
        }
    for (int64_t t = 0; dx && t < o->s; t++)
        for (int64_t k = 0; k < n; k++) {
            put(dx, b_of(h, t) - o->x + k, r->db[t * n + k]);
            put(dx, c_of(h, t) - o->x + k, r->dc[t * n + k]);
        }
}

static void grad_units(void *arg, int64_t begin, int64_t end) {
    const Gradient *g = arg;
    const Scan *o = &g->scan;
    const int64_t p = o->a->head_dim, n = o->a->state, q = o->a->chunk, each = o->heads / o->a->groups;
    for (int64_t unit = begin; unit < end; unit++) {
        Head h = open_group(o, unit / o->a->groups, unit % o->a->groups);
        real *room =
            mem_zero((size_t)(o->s * (2 * n + q) + chunks_of(o) * p * n + p * n + q * (p + 2)), sizeof(real));
        Grads r = {.g = g, .db = room};
        r.dc = r.db + o->s * n, r.pairs = r.dc + o->s * n, r.states = r.pairs + o->s * q;
        r.after = r.states + chunks_of(o) * p * n, r.u = r.after + p * n, r.da = r.u + q * p;
        r.below = r.da + q;
        for (h.head = h.group * each; h.head < (h.group + 1) * each; h.head++) head_gradient(&r, &h);
        finish_group(&r, &h);
        free(room);
        close_group(&h);
    }
}

void KERNEL(ssd_scan_grad)(const Call *c) {
    Gradient g = {.call = c, .scan = scan_of(c->attr, c->in + 1)};
    const Scan *o = &g.scan;
    g.sums = mem_zero((size_t)(o->b * o->heads * SUMS + 1), sizeof(real));
    pool_for(c->device->pool, o->b * o->a->groups, 1, grad_units, &g);
    for (int i = 0; i < SUMS; i++) {
        Tensor *out = c->out[2 + i];
        for (int64_t at = 0; out && at < o->b * o->heads; at++) {
            real *to = reals(out) + at % o->heads, sum = g.sums[at * SUMS + i];
            *to = at >= o->heads || accumulates(out) ? *to + sum : sum;
        }
    }
    free(g.sums);
}
