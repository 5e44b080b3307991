/* The gated delta rule (Yang et al., 2024) in chunks of positions. If the attributes require it, q and k are
 * normalized: q = q_in / sqrt(|q_in|^2 + eps), and q is divided by sqrt(dk). For one value head, with the state S
 * [dk,dv]:
 *
 *   g[t]    = -exp(a_log) softplus(alpha[t] + dt_bias),  beta[t] = sigmoid(beta_in[t])
 *   a[t]    = exp(g[t]), or 0 at the start of a document
 *   e[t]    = v[t] - a[t] S[t-1]^T k[t],  u[t] = beta[t] e[t]
 *   S[t]    = a[t] S[t-1] + k[t] u[t]^T,  y[t] = S[t]^T q[t]
 *
 * A chunk is computed from the state S before its first position. L[i,j] is the product of a over the positions after
 * j up to i, and p[i] is the product over the chunk's positions up to i. Products, unlike differences of sums of g,
 * are precise even if an a is 0. i and j are positions of the chunk:
 *
 *   e[i] = v[i] - p[i] S^T k[i] - sum over j < i of L[i,j] (k[i].k[j]) beta[j] e[j]
 *   y[i] = p[i] S^T q[i] + sum over j <= i of L[i,j] (q[i].k[j]) u[j]
 *   S    = p[last] S + sum over j of L[last,j] k[j] u[j]^T
 *
 * The first line is a triangular system, which is solved by substitution. The backward pass visits chunks in reverse
 * order. R is the gradient of the state after a chunk. The transposed system is solved from the last position:
 *
 *   du[j]  = L[last,j] R^T k[j] + sum over i >= j of L[i,j] (q[i].k[j]) dy[i]
 *            - sum over i > j of L[i,j] (k[i].k[j]) de[i]
 *   de[j]  = beta[j] du[j],  dv[j] = de[j],  dbeta[j] = du[j].e[j]
 *   dq[i]  = p[i] S dy[i] + sum over j <= i of L[i,j] (dy[i].u[j]) k[j]
 *   dk[j]  = L[last,j] R u[j] - p[j] S de[j] + sum over i >= j of L[i,j] (dy[i].u[j]) q[i]
 *            - sum over i > j of L[i,j] (de[i].u[j]) k[i] - sum over i < j of L[j,i] (de[j].u[i]) k[i]
 *   W[i,j] = L[i,j] ((q[i].k[j]) (dy[i].u[j]) - (k[i].k[j]) (de[i].u[j]))
 *   dg[t]  = sum of W[i,j] over j < t <= i, and the terms of S and R that contain a[t]
 *   R      = p[last] R + sum over i of p[i] (q[i] dy[i]^T - k[i] de[i]^T)
 *
 * y is written; gradients are written or accumulated. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/cpu/softplus.h"
#include "kernels/cpu/vectors.h"

typedef struct Rule {
    const DeltaRuleAttr *a;
    const real *qkv, *a_log, *dt_bias;
    const Tensor *alpha, *beta;
    const int64_t *start;       /* NULL: no documents */
    int64_t s, b, heads, width; /* number of value heads, width of a row of qkv */
} Rule;

static Rule rule_of(const DeltaRuleAttr *a, Tensor *const *in) {
    const Tensor *qkv = in[0];
    return (Rule){.a = a,
                  .qkv = reals(qkv),
                  .alpha = in[1],
                  .beta = in[2],
                  .a_log = reals(in[3]),
                  .dt_bias = reals(in[4]),
                  .start = in[5] ? int64s(in[5]) : NULL,
                  .s = qkv->dim[0],
                  .b = qkv->dim[1],
                  .heads = tensor_width(in[1]),
                  .width = qkv->dim[2]};
}

/* One value head of one sample, with the memory for a chunk. Positions of arrays [chunk] count from `first`. */
typedef struct Head {
    const Rule *o;
    int64_t sample, key_head, head, first, end; /* the chunk is [first, end) */
    real *q, *k;                                /* [s,dk]: the normalized rows of the key head */
    real *qk, *kk;     /* [s,chunk]: row i holds q[i].k[j] and k[i].k[j] for j <= i */
    real *beta, *kept; /* [chunk]: beta and p */
    real *pair;        /* [chunk,chunk]: L */
    real *e, *u;       /* [chunk,dv] */
} Head;

static const real *q_of(const Head *h, int64_t t) {
    return h->o->qkv + (t * h->o->b + h->sample) * h->o->width + h->key_head * h->o->a->key_dim;
}
static const real *k_of(const Head *h, int64_t t) {
    return q_of(h, t) + h->o->a->key_heads * h->o->a->key_dim;
}
static const real *v_of(const Head *h, int64_t t) {
    const DeltaRuleAttr *a = h->o->a;
    return h->o->qkv + (t * h->o->b + h->sample) * h->o->width + 2 * a->key_heads * a->key_dim +
           h->head * a->value_dim;
}

static real gate_of(const Head *h, const Tensor *x, int64_t t) {
    return reals(x)[t * x->stride[0] + h->sample * x->stride[1] + h->head];
}
/* Returns alpha + dt_bias at position t. */
static real raw_decay(const Head *h, int64_t t) {
    return gate_of(h, h->o->alpha, t) + h->o->dt_bias[h->head];
}
static real decay_rate(const Head *h) { return -REAL_MATH(exp)(h->o->a_log[h->head]); }

static bool begins(const Head *h, int64_t t) {
    return h->o->start ? h->o->start[h->sample * h->o->s + t] == t : t == 0;
}

/* The factors that normalize a row of q or k. */
static real row_scale(const Rule *o, const real *x) {
    return o->a->normalize ? 1 / REAL_MATH(sqrt)(dot(x, x, o->a->key_dim) + (real)o->a->eps) : 1;
}
static real query_scale(const Rule *o) { return 1 / REAL_MATH(sqrt)((real)o->a->key_dim); }

/* Moves to chunk number `chunk`, and computes its beta, p and L. */
static void enter_chunk(Head *h, int64_t chunk) {
    const int64_t q = h->o->a->chunk;
    const real rate = decay_rate(h);
    real kept = 1;
    h->first = chunk * q;
    h->end = h->first + q < h->o->s ? h->first + q : h->o->s;
    for (int64_t t = h->first; t < h->end; t++) {
        const int64_t i = t - h->first;
        const real a = begins(h, t) ? 0 : REAL_MATH(exp)(rate * softplus(raw_decay(h, t)));
        real *row = h->pair + i * q;
        for (int64_t j = 0; j < i; j++) row[j] = a * row[j - q];
        row[i] = 1;
        h->kept[i] = kept *= a;
        h->beta[i] = sigmoid(gate_of(h, h->o->beta, t));
    }
}

static const real *pairs_of(const Head *h, int64_t i) { return h->pair + (i - h->first) * h->o->a->chunk; }
/* Returns L[last,j] of all j. */
static const real *to_end(const Head *h) { return pairs_of(h, h->end - 1); }
static real kept_of(const Head *h, int64_t i) { return h->kept[i - h->first]; }
static real *u_of(const Head *h, int64_t i) { return h->u + (i - h->first) * h->o->a->value_dim; }
static real *e_of(const Head *h, int64_t i) { return h->e + (i - h->first) * h->o->a->value_dim; }

/* Adds factor S^T x. */
static void add_state(real *to, real factor, const Head *h, const real *state, const real *x) {
    const int64_t n = h->o->a->value_dim;
    for (int64_t k = 0; factor != 0 && k < h->o->a->key_dim; k++)
        add_scaled(to, factor * x[k], state + k * n, n);
}

/* Solves the triangular system for e and u. */
static void solve(const Head *h, const real *state) {
    const int64_t d = h->o->a->key_dim, n = h->o->a->value_dim, q = h->o->a->chunk;
    for (int64_t i = h->first; i < h->end; i++) {
        real *e = e_of(h, i), *u = u_of(h, i);
        const real *pair = pairs_of(h, i), *kk = h->kk + i * q;
        memcpy(e, v_of(h, i), (size_t)n * sizeof(real));
        add_state(e, -kept_of(h, i), h, state, h->k + i * d);
        for (int64_t j = 0; j < i - h->first; j++) add_scaled(e, -pair[j] * kk[j], h->u + j * n, n);
        for (int64_t c = 0; c < n; c++) u[c] = h->beta[i - h->first] * e[c];
    }
}

/* Replaces the state before the chunk with the state after it. */
static void advance(const Head *h, real *state) {
    const int64_t d = h->o->a->key_dim, n = h->o->a->value_dim;
    const real keep = kept_of(h, h->end - 1);
    for (int64_t i = 0; i < d * n; i++) state[i] *= keep;
    for (int64_t j = h->first; j < h->end; j++)
        add_product(state, to_end(h)[j - h->first], h->k + j * d, u_of(h, j), d, n);
}

static void chunk_outputs(const Head *h, const real *state, real *y) {
    const Rule *o = h->o;
    const int64_t n = o->a->value_dim, q = o->a->chunk;
    for (int64_t i = h->first; i < h->end; i++) {
        real *out = y + ((i * o->b + h->sample) * o->heads + h->head) * n;
        const real *pair = pairs_of(h, i), *qk = h->qk + i * q;
        memset(out, 0, (size_t)n * sizeof(real));
        for (int64_t j = 0; j <= i - h->first; j++) add_scaled(out, pair[j] * qk[j], h->u + j * n, n);
        add_state(out, kept_of(h, i), h, state, h->q + i * o->a->key_dim);
    }
}

static int64_t chunks_of(const Rule *o) { return (o->s + o->a->chunk - 1) / o->a->chunk; }

/* Opens a key head of a sample, and computes its rows and their products. close_group frees the memory. */
static Head open_group(const Rule *o, int64_t sample, int64_t key_head) {
    const int64_t q = o->a->chunk, d = o->a->key_dim, n = o->a->value_dim;
    Head h = {.o = o, .sample = sample, .key_head = key_head};
    h.q = mem_alloc((size_t)(2 * o->s * (d + q) + q * (q + 2 + 2 * n)) * sizeof(real));
    h.k = h.q + o->s * d, h.qk = h.k + o->s * d, h.kk = h.qk + o->s * q, h.beta = h.kk + o->s * q;
    h.kept = h.beta + q, h.pair = h.kept + q, h.e = h.pair + q * q, h.u = h.e + q * n;
    for (int64_t i = 0; i < o->s; i++) {
        const real *from_q = q_of(&h, i), *from_k = k_of(&h, i), of_q = row_scale(o, from_q) * query_scale(o),
                   of_k = row_scale(o, from_k);
        for (int64_t k = 0; k < d; k++) h.q[i * d + k] = of_q * from_q[k], h.k[i * d + k] = of_k * from_k[k];
        for (int64_t j = i / q * q; j <= i; j++) {
            h.qk[i * q + j % q] = dot(h.q + i * d, h.k + j * d, d);
            h.kk[i * q + j % q] = dot(h.k + i * d, h.k + j * d, d);
        }
    }
    return h;
}

static void close_group(Head *h) { free(h->q); }

static int64_t heads_per_group(const Rule *o) { return o->heads / o->a->key_heads; }

/* A unit of work is a key head of a sample. */
static void rule_units(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const Rule o = rule_of(c->attr, c->in);
    const int64_t each = heads_per_group(&o), size = o.a->key_dim * o.a->value_dim;
    for (int64_t unit = begin; unit < end; unit++) {
        Head h = open_group(&o, unit / o.a->key_heads, unit % o.a->key_heads);
        real *state = mem_alloc((size_t)size * sizeof(real));
        for (h.head = h.key_head * each; h.head < (h.key_head + 1) * each; h.head++) {
            memset(state, 0, (size_t)size * sizeof(real));
            for (int64_t chunk = 0; chunk < chunks_of(&o); chunk++) {
                enter_chunk(&h, chunk);
                solve(&h, state);
                chunk_outputs(&h, state, reals(c->out[0]));
                advance(&h, state);
            }
        }
        free(state);
        close_group(&h);
    }
}

void KERNEL(gated_delta_rule)(const Call *c) {
    const DeltaRuleAttr *a = c->attr;
    pool_for(c->device->pool, c->in[0]->dim[1] * a->key_heads, 1, rule_units, (void *)c);
}

/* ---- gradient ---- */

enum { A_LOG, DT_BIAS, SUMS }; /* the parameters */

typedef struct Gradient {
    const Call *call;
    Rule rule;
    real *sums; /* [b,heads,SUMS]: each sample's gradients of the parameters */
} Gradient;

/* The gradients of a key head, and those of a chunk of one of its value heads. */
typedef struct Grads {
    const Gradient *g;
    real *dq, *dk;        /* [s,dk] */
    real *dqk, *dkk;      /* [s,chunk]: the gradients of qk and kk */
    real *states, *after; /* [chunks,dk,dv]: the states before all chunks; R */
    real *du, *de;        /* [chunk,dv] */
    real *row;            /* [dk] */
    real *dg, *dbeta;     /* [chunk] */
    real *below;          /* [chunk]: the sum of W[i,j] over the rows i so far */
} Grads;

static const real *dy_of(const Grads *r, const Head *h, int64_t t) {
    const Rule *o = h->o;
    return reals(r->g->call->in[0]) + ((t * o->b + h->sample) * o->heads + h->head) * o->a->value_dim;
}

/* Solves the transposed system for du and de. */
static void solve_transposed(const Grads *r, const Head *h) {
    const int64_t d = h->o->a->key_dim, n = h->o->a->value_dim, q = h->o->a->chunk;
    for (int64_t j = h->end - 1; j >= h->first; j--) {
        const int64_t at = j - h->first;
        real *du = r->du + at * n, *de = r->de + at * n;
        memset(du, 0, (size_t)n * sizeof(real));
        add_state(du, to_end(h)[at], h, r->after, h->k + j * d);
        for (int64_t i = j; i < h->end; i++)
            add_scaled(du, pairs_of(h, i)[at] * h->qk[i * q + at], dy_of(r, h, i), n);
        for (int64_t i = j + 1; i < h->end; i++)
            add_scaled(du, -pairs_of(h, i)[at] * h->kk[i * q + at], r->de + (i - h->first) * n, n);
        for (int64_t c = 0; c < n; c++) de[c] = h->beta[at] * du[c];
        r->dbeta[at] = dot(du, e_of(h, j), n);
    }
}

/* Adds the terms of the pairs (i, j). Rows are visited from last to first, so that row t reads the sums of W
 * over the rows i >= t. */
static void pair_terms(const Grads *r, const Head *h) {
    const int64_t n = h->o->a->value_dim, q = h->o->a->chunk;
    memset(r->below, 0, (size_t)q * sizeof(real));
    for (int64_t i = h->end - 1; i >= h->first; i--) {
        const int64_t at = i - h->first;
        const real *pair = pairs_of(h, i), *dy = dy_of(r, h, i), *de = r->de + at * n;
        for (int64_t j = 0; j <= at; j++) {
            const real by_q = pair[j] * dot(dy, h->u + j * n, n),
                       by_k = j < at ? -pair[j] * dot(de, h->u + j * n, n) : 0;
            r->dqk[i * q + j] += by_q;
            r->dkk[i * q + j] += by_k;
            r->below[j] += h->qk[i * q + j] * by_q + h->kk[i * q + j] * by_k;
        }
        for (int64_t j = 0; j < at; j++) r->dg[at] += r->below[j];
    }
}

/* Sets row = factor M x, adds it to `to`, and returns row.along. M is a state or its gradient. */
static real add_row(const Grads *r, const Head *h, real factor, const real *matrix, const real *x, real *to,
                    const real *along) {
    const int64_t d = h->o->a->key_dim, n = h->o->a->value_dim;
    if (factor == 0) return 0;
    for (int64_t k = 0; k < d; k++) r->row[k] = factor * dot(matrix + k * n, x, n);
    add_scaled(to, 1, r->row, d);
    return dot(r->row, along, d);
}

/* Adds the terms of the state before the chunk. */
static void terms_of_state(const Grads *r, const Head *h, const real *state) {
    const int64_t d = h->o->a->key_dim, n = h->o->a->value_dim;
    real later = 0;
    for (int64_t i = h->end - 1; i >= h->first; i--) {
        const real kept = kept_of(h, i), *de = r->de + (i - h->first) * n;
        later += add_row(r, h, kept, state, dy_of(r, h, i), r->dq + i * d, h->q + i * d);
        later += add_row(r, h, -kept, state, de, r->dk + i * d, h->k + i * d);
        r->dg[i - h->first] += later;
    }
}

/* Adds the terms of R, the gradient of the state after the chunk. */
static void terms_of_after(const Grads *r, const Head *h, const real *state) {
    const int64_t d = h->o->a->key_dim, n = h->o->a->value_dim;
    const real keep = kept_of(h, h->end - 1);
    real earlier = keep != 0 ? keep * dot(r->after, state, d * n) : 0;
    for (int64_t j = h->first; j < h->end; j++) {
        r->dg[j - h->first] += earlier;
        earlier += add_row(r, h, to_end(h)[j - h->first], r->after, u_of(h, j), r->dk + j * d, h->k + j * d);
    }
}

/* Replaces R with the gradient of the state before the chunk. */
static void retreat(const Grads *r, const Head *h) {
    const int64_t d = h->o->a->key_dim, n = h->o->a->value_dim;
    const real keep = kept_of(h, h->end - 1);
    for (int64_t i = 0; i < d * n; i++) r->after[i] *= keep;
    for (int64_t i = h->first; i < h->end && kept_of(h, i) != 0; i++) {
        add_product(r->after, kept_of(h, i), h->q + i * d, dy_of(r, h, i), d, n);
        add_product(r->after, -kept_of(h, i), h->k + i * d, r->de + (i - h->first) * n, d, n);
    }
}

static void put_gate(const Head *h, const Tensor *out, int64_t t, real value) {
    if (out) put(out, t * out->stride[0] + h->sample * out->stride[1] + h->head, value);
}

/* Writes the gradients of v, alpha and beta, and adds to the sample's gradients of the parameters. */
static void finish_chunk(const Grads *r, const Head *h) {
    const Rule *o = h->o;
    Tensor *const *out = r->g->call->out;
    const int64_t n = o->a->value_dim;
    const real rate = decay_rate(h);
    real *sums = r->g->sums + (h->sample * o->heads + h->head) * SUMS;
    for (int64_t t = h->first; t < h->end; t++) {
        const int64_t i = t - h->first;
        const real raw = raw_decay(h, t), dg = r->dg[i], draw = dg * rate * softplus_slope(raw);
        sums[A_LOG] += dg * rate * softplus(raw);
        sums[DT_BIAS] += draw;
        put_gate(h, out[1], t, draw);
        put_gate(h, out[2], t, r->dbeta[i] * h->beta[i] * (1 - h->beta[i]));
        for (int64_t c = 0; out[0] && c < n; c++) put(out[0], v_of(h, t) - o->qkv + c, r->de[i * n + c]);
    }
}

static void head_gradient(const Grads *r, Head *h) {
    const Rule *o = h->o;
    const int64_t size = o->a->key_dim * o->a->value_dim, chunks = chunks_of(o);
    real *state = r->states;
    memset(state, 0, (size_t)size * sizeof(real));
    for (int64_t chunk = 0; chunk + 1 < chunks; chunk++, state += size) {
        memcpy(state + size, state, (size_t)size * sizeof(real));
        enter_chunk(h, chunk);
        solve(h, state);
        advance(h, state + size);
    }
    memset(r->after, 0, (size_t)size * sizeof(real));
    for (int64_t chunk = chunks - 1; chunk >= 0; chunk--) {
        enter_chunk(h, chunk);
        solve(h, r->states + chunk * size);
        solve_transposed(r, h);
        memset(r->dg, 0, (size_t)o->a->chunk * sizeof(real));
        pair_terms(r, h);
        terms_of_state(r, h, r->states + chunk * size);
        terms_of_after(r, h, r->states + chunk * size);
        finish_chunk(r, h);
        retreat(r, h);
    }
}

/* Writes the gradient of a row x of q or k, given the gradient d of the normalized row, scale * x. */
static void put_row(const Rule *o, const Tensor *out, const real *x, real factor, const real *d) {
    const int64_t width = o->a->key_dim;
    const real scale = row_scale(o, x), along = o->a->normalize ? dot(x, d, width) * scale * scale : 0;
    for (int64_t k = 0; k < width; k++) put(out, x - o->qkv + k, factor * scale * (d[k] - along * x[k]));
}

/* Writes the gradients of q and k after all value heads of the key head. */
static void finish_group(const Grads *r, const Head *h) {
    const Rule *o = h->o;
    const int64_t d = o->a->key_dim, q = o->a->chunk;
    for (int64_t i = 0; i < o->s; i++)
        for (int64_t j = i / q * q; j <= i; j++) {
            const real dqk = r->dqk[i * q + j % q], dkk = r->dkk[i * q + j % q];
            add_scaled(r->dq + i * d, dqk, h->k + j * d, d);
            add_scaled(r->dk + j * d, dqk, h->q + i * d, d);
            add_scaled(r->dk + j * d, dkk, h->k + i * d, d);
            add_scaled(r->dk + i * d, dkk, h->k + j * d, d);
        }
    for (int64_t t = 0; t < o->s; t++) {
        put_row(o, r->g->call->out[0], q_of(h, t), query_scale(o), r->dq + t * d);
        put_row(o, r->g->call->out[0], k_of(h, t), 1, r->dk + t * d);
    }
}

static void grad_units(void *arg, int64_t begin, int64_t end) {
    const Gradient *g = arg;
    const Rule *o = &g->rule;
    const int64_t d = o->a->key_dim, n = o->a->value_dim, q = o->a->chunk, each = heads_per_group(o);
    for (int64_t unit = begin; unit < end; unit++) {
        Head h = open_group(o, unit / o->a->key_heads, unit % o->a->key_heads);
        real *room = mem_zero((size_t)(2 * o->s * (d + q) + (chunks_of(o) + 1) * d * n + q * (2 * n + 3) + d),
                              sizeof(real));
        Grads r = {.g = g, .dq = room};
        r.dk = r.dq + o->s * d, r.dqk = r.dk + o->s * d, r.dkk = r.dqk + o->s * q;
        r.states = r.dkk + o->s * q, r.after = r.states + chunks_of(o) * d * n, r.du = r.after + d * n;
        r.de = r.du + q * n, r.dg = r.de + q * n, r.dbeta = r.dg + q, r.below = r.dbeta + q;
        r.row = r.below + q;
        for (h.head = h.key_head * each; h.head < (h.key_head + 1) * each; h.head++) head_gradient(&r, &h);
        if (g->call->out[0]) finish_group(&r, &h);
        free(room);
        close_group(&h);
    }
}

void KERNEL(gated_delta_rule_grad)(const Call *c) {
    Gradient g = {.call = c, .rule = rule_of(c->attr, c->in + 1)};
    const Rule *o = &g.rule;
    g.sums = mem_zero((size_t)(o->b * o->heads * SUMS + 1), sizeof(real));
    pool_for(c->device->pool, o->b * o->a->key_heads, 1, grad_units, &g);
    for (int i = 0; i < SUMS; i++) {
        Tensor *out = c->out[3 + i];
        for (int64_t at = 0; out && at < o->b * o->heads; at++) {
            real *to = reals(out) + at % o->heads, sum = g.sums[at * SUMS + i];
            *to = at >= o->heads || accumulates(out) ? *to + sum : sum;
        }
    }
    free(g.sums);
}
