/* A causal depthwise convolution of k taps, then SiLU:
 *
 *   pre[t] = bias + sum over i of w[i] x[t - k + 1 + i],  where tokens before the document's start count as 0
 *   y      = pre sigmoid(pre)
 *   dpre   = dy sigmoid(pre) (1 + pre (1 - sigmoid(pre)))
 *   dx[t]  = sum over i of w[i] dpre[t + k - 1 - i],  dw[i] = sum over t of dpre[t] x[t - k + 1 + i]
 *
 * y is written; dx, dw and dbias are written or accumulated. */
#include <stdlib.h>

#include "base/mem.h"
#include "kernels/cpu/softplus.h"

typedef struct Conv {
    const Tensor *x;
    const real *w, *bias;
    const int64_t *start; /* NULL: no documents */
    int64_t s, b, c, k;
} Conv;

static Conv conv_of(Tensor *const *in) {
    const Tensor *x = in[0], *w = in[1];
    CHECK(w->dim[1] <= CONV_TAPS, "causal_conv: %lld taps, but at most %d are supported",
          (long long)w->dim[1], CONV_TAPS);
    return (Conv){.x = x,
                  .w = reals(w),
                  .bias = in[2] ? reals(in[2]) : NULL,
                  .start = in[3] ? int64s(in[3]) : NULL,
                  .s = x->dim[0],
                  .b = x->dim[1],
                  .c = x->dim[2],
                  .k = w->dim[1]};
}

static int64_t start_of(const Conv *o, int64_t t, int64_t sample) {
    return o->start ? o->start[sample * o->s + t] : 0;
}

/* Returns x at position t. */
static const real *row_of(const Conv *o, int64_t t, int64_t sample) {
    return reals(o->x) + t * o->x->stride[0] + sample * o->x->stride[1];
}

/* Computes `pre` of row t * b + sample. */
static void convolve(const Conv *o, int64_t row, real *pre) {
    const int64_t t = row / o->b, sample = row % o->b, start = start_of(o, t, sample);
    for (int64_t j = 0; j < o->c; j++) pre[j] = o->bias ? o->bias[j] : 0;
    for (int64_t i = 0; i < o->k; i++) {
        const int64_t from = t - o->k + 1 + i;
        if (from < start) continue;
        const real *x = row_of(o, from, sample);
#pragma omp simd
        for (int64_t j = 0; j < o->c; j++) pre[j] += o->w[j * o->k + i] * x[j];
    }
}

static void rows(void *arg, int64_t begin, int64_t end) {
    const Call *call = arg;
    const Conv o = conv_of(call->in);
    for (int64_t r = begin; r < end; r++) {
        real *y = reals(call->out[0]) + r * o.c;
        convolve(&o, r, y);
        for (int64_t j = 0; j < o.c; j++) y[j] *= sigmoid(y[j]);
    }
}

void KERNEL(causal_conv)(const Call *c) {
    const Tensor *x = c->in[0];
    pool_for(c->device->pool, tensor_rows(x), grain_rows(tensor_width(x)), rows, (void *)c);
}

typedef struct Gradient {
    const Call *call;
    Conv conv;
    real *dpre; /* [s,b,c] */
} Gradient;

static void dpre_rows(void *arg, int64_t begin, int64_t end) {
    const Gradient *g = arg;
    for (int64_t r = begin; r < end; r++) {
        const real *dy = reals(g->call->in[0]) + r * g->conv.c;
        real *dpre = g->dpre + r * g->conv.c;
        convolve(&g->conv, r, dpre);
        for (int64_t j = 0; j < g->conv.c; j++) {
            const real pre = dpre[j], gate = sigmoid(pre);
            dpre[j] = dy[j] * gate * (1 + pre * (1 - gate));
        }
    }
}

static void dx_rows(void *arg, int64_t begin, int64_t end) {
    const Gradient *g = arg;
    const Conv *o = &g->conv;
    Tensor *dx = g->call->out[0];
    for (int64_t r = begin; r < end; r++) {
        const int64_t t = r / o->b, sample = r % o->b;
        real *out = reals(dx) + t * dx->stride[0] + sample * dx->stride[1];
        for (int64_t j = 0; j < o->c; j++) {
            real sum = 0;
            for (int64_t to = t; to < t + o->k && to < o->s && start_of(o, to, sample) <= t; to++)
                sum += o->w[j * o->k + o->k - 1 - (to - t)] * g->dpre[(to * o->b + sample) * o->c + j];
            out[j] = accumulates(dx) ? out[j] + sum : sum;
        }
    }
}

/* Adds a sample's gradients of channel j to the outputs, or writes them. */
static void add_channel(const Gradient *g, int64_t j, int64_t sample) {
    const Conv *o = &g->conv;
    real sum[CONV_TAPS + 1] = {0};
    for (int64_t t = 0; t < o->s; t++) {
        const real d = g->dpre[(t * o->b + sample) * o->c + j];
        for (int64_t i = 0; i < o->k; i++) {
            const int64_t from = t - o->k + 1 + i;
            if (from >= start_of(o, t, sample)) sum[i] += d * row_of(o, from, sample)[j];
        }
        sum[o->k] += d;
    }
    for (int64_t i = 0; i <= o->k; i++) {
        Tensor *out = g->call->out[i < o->k ? 1 : 2];
        if (!out) continue;
        real *to = reals(out) + (i < o->k ? j * o->k + i : j);
        *to = sample || accumulates(out) ? *to + sum[i] : sum[i];
    }
}

static void channels(void *arg, int64_t begin, int64_t end) {
    const Gradient *g = arg;
    for (int64_t j = begin; j < end; j++)
        for (int64_t sample = 0; sample < g->conv.b; sample++) add_channel(g, j, sample);
}

void KERNEL(causal_conv_grad)(const Call *c) {
    Gradient g = {.call = c, .conv = conv_of(c->in + 1)};
    const int64_t n = g.conv.s * g.conv.b, width = g.conv.c;
    g.dpre = mem_alloc((size_t)(n * width + 1) * sizeof(real));
    pool_for(c->device->pool, n, grain_rows(width), dpre_rows, &g);
    if (c->out[0]) pool_for(c->device->pool, n, grain_rows(width), dx_rows, &g);
    if (c->out[1] || c->out[2]) pool_for(c->device->pool, width, grain_rows(n), channels, &g);
    free(g.dpre);
}
