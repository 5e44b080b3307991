/* Computes a linear layer, y = x w^T + bias over the last dimension, and its gradients dx = dy w, dw = dy^T
 * x, dbias = sum of dy. If x is the activation of an operand `pre`, dx is the gradient of pre, dy w
 * act'(pre); this gradient is bitwise equal to linear_dgrad followed by activation_grad. The op `bias`
 * computes y = x + bias. y and act are written; dx (without pre), dw and dbias are written or accumulated. dw
 * is one GEMM over all tokens. */
#include "kernels/cpu/gemm.h"

static bool fixed_order(const Call *c) {
    const LinearAttr *a = c->attr;
    return a->fixed_order;
}

void KERNEL(activation)(const Call *);
void KERNEL(activation_grad)(const Call *);

static ActivationAttr activation_of(const Call *c) {
    return (ActivationAttr){.kind = ((const LinearAttr *)c->attr)->activation};
}

void KERNEL(linear)(const Call *c) {
    const Tensor *x = c->in[0], *w = c->in[1];
    const int64_t in = w->dim[1], out = w->dim[0];
    const bool narrow = w->dtype != REAL_TYPE;
    KERNEL(gemm)
    (c->device, &(Gemm){.transpose_b = true,
                        .fixed_order = fixed_order(c),
                        .m = tensor_rows(x),
                        .n = out,
                        .k = in,
                        .a = reals(x),
                        .lda = in,
                        .b = narrow ? NULL : reals(w),
                        .b_narrow = narrow ? w->data : NULL,
                        .b_type = (DType)w->dtype,
                        .ldb = in,
                        .c = reals(c->out[0]),
                        .ldc = out,
                        .bias = c->in[2] ? reals(c->in[2]) : NULL});
    const ActivationAttr activation = activation_of(c);
    if (c->out[1]) KERNEL(activation)
    (&(Call){.in = {c->out[0]}, .out = {c->out[1]}, .attr = &activation, .device = c->device});
}

static void round_elements(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    round_to_stored(c, reals(c->out[0]) + begin, end - begin);
}

static void through_activation(const Call *c) {
    Tensor *dx = c->out[0];
    const ActivationAttr activation = activation_of(c);
    if (dtype_is_16bit(c->stored))
        pool_for(c->device->pool, tensor_count(dx), GRAIN, round_elements, (void *)c);
    KERNEL(activation_grad)
    (&(Call){.in = {dx, c->in[2]}, .out = {dx}, .attr = &activation, .device = c->device});
}

void KERNEL(linear_dgrad)(const Call *c) {
    const Tensor *dy = c->in[0], *w = c->in[1];
    const int64_t in = w->dim[1], out = w->dim[0];
    CHECK(!c->in[2] || !accumulates(c->out[0]), "linear_dgrad: the gradient of pre cannot be accumulated");
    KERNEL(gemm)
    (c->device, &(Gemm){.fixed_order = fixed_order(c),
                        .m = tensor_rows(dy),
                        .n = in,
                        .k = out,
                        .a = reals(dy),
                        .lda = out,
                        .b = reals(w),
                        .ldb = in,
                        .c = reals(c->out[0]),
                        .ldc = in,
                        .accumulate = accumulates(c->out[0])});
    if (c->in[2]) through_activation(c);
}

/* Number of columns of dbias per unit of work. */
enum { COLUMNS = 64 };
static void bias_columns(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const Tensor *dy = c->in[0], *dbias = c->out[1];
    const int64_t s = dy->dim[0], b = dy->dim[1], width = dy->dim[2];
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t first = unit * COLUMNS, n = width - first < COLUMNS ? width - first : COLUMNS;
        real *out = reals(dbias) + first;
        for (int64_t sample = 0; sample < b; sample++) {
            real sum[COLUMNS] = {0};
            for (int64_t i = 0; i < s; i++) {
                const real *row = reals(dy) + (i * b + sample) * width + first;
#pragma omp simd
                for (int64_t j = 0; j < n; j++) sum[j] += row[j];
            }
            const bool add = sample > 0 || accumulates(dbias);
            for (int64_t j = 0; j < n; j++) out[j] = add ? out[j] + sum[j] : sum[j];
        }
    }
}

void KERNEL(linear_wgrad)(const Call *c) {
    const Tensor *dy = c->in[0], *x = c->in[1], *dw = c->out[0];
    const int64_t in = tensor_width(x), out = tensor_width(dy);
    if (dw) KERNEL(gemm)
    (c->device, &(Gemm){.transpose_a = true,
                        .fixed_order = fixed_order(c),
                        .m = out,
                        .n = in,
                        .k = tensor_rows(dy),
                        .a = reals(dy),
                        .lda = out,
                        .b = reals(x),
                        .ldb = in,
                        .c = reals(dw),
                        .ldc = in,
                        .accumulate = accumulates(dw)});
    if (c->out[1])
        pool_for(c->device->pool, (out + COLUMNS - 1) / COLUMNS, grain_rows(COLUMNS * tensor_rows(dy)),
                 bias_columns, (void *)c);
}

static void bias_rows(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const int64_t n = tensor_width(c->in[0]);
    for (int64_t r = begin; r < end; r++) {
        const real *x = reals(c->in[0]) + r * n, *bias = reals(c->in[1]);
        real *y = reals(c->out[0]) + r * n;
#pragma omp simd
        for (int64_t i = 0; i < n; i++) y[i] = x[i] + bias[i];
    }
}

void KERNEL(bias)(const Call *c) {
    pool_for(c->device->pool, tensor_rows(c->in[0]), grain_rows(tensor_width(c->in[0])), bias_rows,
             (void *)c);
}
