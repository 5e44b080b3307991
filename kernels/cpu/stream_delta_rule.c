/* The gated delta rule for a stream of tokens from several requests. The requests' states are stored in slots.
 * gated_delta_rule.c contains the formulas. The recurrence is computed token by token, so that results do not depend on
 * how a request's tokens are divided among passes. The tokens of a request are adjacent. A token at position 0 has no
 * earlier tokens. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/cpu/softplus.h"

/* One value head of a token. */
typedef struct Step {
    const real *q, *k, *v; /* rows that are not normalized */
    real of_q, of_k;       /* the factors that normalize q and k */
    real kept, beta;
} Step;

static real row_scale(const DeltaRuleAttr *a, const real *x) {
    real sum = (real)a->eps;
    if (!a->normalize) return 1;
    for (int64_t m = 0; m < a->key_dim; m++) sum += x[m] * x[m];
    return 1 / REAL_MATH(sqrt)(sum);
}

static Step step_of(const Call *c, int64_t t, int64_t head) {
    const DeltaRuleAttr *a = c->attr;
    const Tensor *qkv = c->in[0], *alpha = c->in[1], *beta = c->in[2];
    const int64_t each = tensor_width(alpha) / a->key_heads;
    const real *row = reals(qkv) + t * qkv->dim[2], rate = -REAL_MATH(exp)(reals(c->in[3])[head]),
               raw = reals(alpha)[t * alpha->stride[0] + head] + reals(c->in[4])[head];
    Step s = {.q = row + head / each * a->key_dim};
    s.k = s.q + a->key_heads * a->key_dim;
    s.v = row + 2 * a->key_heads * a->key_dim + head * a->value_dim;
    s.of_q = row_scale(a, s.q) / REAL_MATH(sqrt)((real)a->key_dim), s.of_k = row_scale(a, s.k);
    s.kept = REAL_MATH(exp)(rate * softplus(raw));
    s.beta = sigmoid(reals(beta)[t * beta->stride[0] + head]);
    return s;
}

/* Changes the state [d,n] and computes y [n]. e [n] is scratch memory. */
static void advance(const Step *s, real *state, real *e, real *y, int64_t d, int64_t n) {
    memcpy(e, s->v, (size_t)n * sizeof(real));
    for (int64_t m = 0; m < d; m++) {
        real *row = state + m * n;
        const real k = s->of_k * s->k[m];
#pragma omp simd
        for (int64_t i = 0; i < n; i++) row[i] *= s->kept, e[i] -= k * row[i];
    }
    memset(y, 0, (size_t)n * sizeof(real));
    for (int64_t m = 0; m < d; m++) {
        real *row = state + m * n;
        const real added = s->of_k * s->k[m] * s->beta, q = s->of_q * s->q[m];
#pragma omp simd
        for (int64_t i = 0; i < n; i++) row[i] += added * e[i], y[i] += q * row[i];
    }
}

static void heads(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const DeltaRuleAttr *a = c->attr;
    const int64_t *slot = int64s(c->in[5]), *position = int64s(c->in[6]);
    const int64_t d = a->key_dim, n = a->value_dim, h = tensor_width(c->in[1]);
    real *e = mem_alloc((size_t)n * sizeof(real));
    for (int64_t head = begin; head < end; head++)
        for (int64_t t = 0; t < c->in[0]->dim[0]; t++) {
            const Step s = step_of(c, t, head);
            real *state = reals(c->out[1]) + (slot[t] * h + head) * d * n;
            if (position[t] == 0) memset(state, 0, (size_t)(d * n) * sizeof(real));
            advance(&s, state, e, reals(c->out[0]) + (t * h + head) * n, d, n);
        }
    free(e);
}

void KERNEL(stream_delta_rule)(const Call *c) {
    const DeltaRuleAttr *a = c->attr;
    pool_for(c->device->pool, tensor_width(c->in[1]),
             grain_rows(c->in[0]->dim[0] * a->key_dim * a->value_dim), heads, (void *)c);
}
