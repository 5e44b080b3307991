/* Computes the linear layers of all experts as one grouped GEMM (Megatron-LM
 * core/transformer/moe/experts.py). Rows [offset[e], offset[e+1]) of x are multiplied by expert e's block of
 * the weight. The GEMM of each expert has the same order of summation as a linear layer. y is written; dx and
 * dw are written or accumulated. An expert without rows contributes 0 to dw. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/cpu/gemm.h"

typedef struct Grouped {
    const Call *call;
    const Tensor *offset;
    Gemm (*gemm)(const struct Grouped *, int64_t first, int64_t rows, int64_t expert);
    Device device; /* the device that runs each GEMM; has no thread pool if experts run in parallel */
} Grouped;

static int64_t out_width(const Grouped *g, const Tensor *w) { return w->dim[0] / (g->offset->dim[0] - 1); }

static Gemm forward(const Grouped *g, int64_t first, int64_t rows, int64_t expert) {
    const Tensor *x = g->call->in[0], *w = g->call->in[1];
    const int64_t in = w->dim[1], out = out_width(g, w);
    const bool narrow = w->dtype != REAL_TYPE;
    return (Gemm){.transpose_b = true,
                  .m = rows,
                  .n = out,
                  .k = in,
                  .a = reals(x) + first * in,
                  .lda = in,
                  .b = narrow ? NULL : reals(w) + expert * out * in,
                  .b_narrow = narrow ? (const uint16_t *)w->data + expert * out * in : NULL,
                  .b_type = (DType)w->dtype,
                  .ldb = in,
                  .c = reals(g->call->out[0]) + first * out,
                  .ldc = out};
}

static Gemm dgrad(const Grouped *g, int64_t first, int64_t rows, int64_t expert) {
    const Tensor *dy = g->call->in[0], *w = g->call->in[1];
    const int64_t in = w->dim[1], out = out_width(g, w);
    return (Gemm){.m = rows,
                  .n = in,
                  .k = out,
                  .a = reals(dy) + first * out,
                  .lda = out,
                  .b = reals(w) + expert * out * in,
                  .ldb = in,
                  .c = reals(g->call->out[0]) + first * in,
                  .ldc = in};
}

static Gemm wgrad(const Grouped *g, int64_t first, int64_t rows, int64_t expert) {
    const Tensor *dy = g->call->in[0], *x = g->call->in[1];
    const int64_t in = tensor_width(x), out = tensor_width(dy);
    return (Gemm){.transpose_a = true,
                  .m = out,
                  .n = in,
                  .k = rows,
                  .a = reals(dy) + first * out,
                  .lda = out,
                  .b = reals(x) + first * in,
                  .ldb = in,
                  .c = reals(g->call->out[0]) + expert * out * in,
                  .ldc = in};
}

static void run_experts(void *arg, int64_t begin, int64_t end) {
    Grouped *g = arg;
    const LinearAttr *a = g->call->attr;
    const int64_t *offset = int64s(g->offset);
    for (int64_t e = begin; e < end; e++) {
        Gemm one = g->gemm(g, offset[e], offset[e + 1] - offset[e], e);
        one.fixed_order = a->fixed_order;
        one.accumulate = accumulates(g->call->out[0]);
        if (one.m > 0 && one.k > 0)
            KERNEL(gemm)(&g->device, &one);
        else if (!one.accumulate)
            memset(one.c, 0, (size_t)(one.m * one.n) * sizeof(real));
    }
}

static void grouped_run(const Call *c, Gemm (*gemm)(const Grouped *, int64_t, int64_t, int64_t)) {
    Grouped g = {c, c->in[2], gemm, *c->device};
    const int64_t experts = g.offset->dim[0] - 1;
    if (experts < pool_threads(c->device->pool)) {
        run_experts(&g, 0, experts);
        return;
    }
    g.device.pool = NULL;
    pool_for(c->device->pool, experts, 1, run_experts, &g);
}

/* Sets the unused rows after the last expert's rows to 0. */
static void clear_tail(const Call *c) {
    const Tensor *y = c->out[0], *offset = c->in[2];
    const int64_t used = int64s(offset)[offset->dim[0] - 1], n = tensor_width(y);
    if (!accumulates(y)) memset(reals(y) + used * n, 0, (size_t)((y->dim[0] - used) * n) * sizeof(real));
}

/* ---- biases ---- */

static real scale_of(const Tensor *scale, int64_t row) { return scale ? reals(scale)[row] : 1; }

static void add_biases(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const int64_t n = tensor_width(c->out[0]), *offset = int64s(c->in[2]);
    for (int64_t e = begin; e < end; e++) {
        const real *bias = reals(c->in[3]) + e * n;
        for (int64_t r = offset[e]; r < offset[e + 1]; r++) {
            const real scale = scale_of(c->in[4], r);
            real *y = reals(c->out[0]) + r * n;
            for (int64_t i = 0; i < n; i++) y[i] += scale * bias[i];
        }
    }
}

static void bias_gradients(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const Tensor *dbias = c->out[0], *dscale = c->out[1];
    const int64_t n = tensor_width(c->in[0]), *offset = int64s(c->in[2]);
    real *sum = mem_alloc((size_t)n * sizeof *sum);
    for (int64_t e = begin; e < end; e++) {
        const real *bias = reals(c->in[1]) + e * n;
        memset(sum, 0, (size_t)n * sizeof *sum);
        for (int64_t r = offset[e]; r < offset[e + 1]; r++) {
            const real *dy = reals(c->in[0]) + r * n, scale = scale_of(c->in[3], r);
            real dot = 0;
            for (int64_t i = 0; i < n; i++) dot += dy[i] * bias[i], sum[i] += scale * dy[i];
            if (dscale) reals(dscale)[r] = accumulates(dscale) ? reals(dscale)[r] + dot : dot;
        }
        for (int64_t i = 0; dbias && i < n; i++)
            reals(dbias)[e * n + i] = accumulates(dbias) ? reals(dbias)[e * n + i] + sum[i] : sum[i];
    }
    free(sum);
}

void KERNEL(grouped_bias_grad)(const Call *c) {
    const Tensor *offset = c->in[2], *dscale = c->out[1];
    const int64_t experts = offset->dim[0] - 1, used = int64s(offset)[experts];
    if (dscale && !accumulates(dscale))
        memset(reals(dscale) + used, 0, (size_t)(tensor_count(dscale) - used) * sizeof(real));
    pool_for(c->device->pool, experts, 1, bias_gradients, (void *)c);
}

/* ---- ops ---- */

void KERNEL(grouped_linear)(const Call *c) {
    grouped_run(c, forward);
    clear_tail(c);
    if (c->in[3]) pool_for(c->device->pool, c->in[2]->dim[0] - 1, 1, add_biases, (void *)c);
}

void KERNEL(grouped_linear_dgrad)(const Call *c) {
    grouped_run(c, dgrad);
    clear_tail(c);
}

void KERNEL(grouped_linear_wgrad)(const Call *c) { grouped_run(c, wgrad); }
