/* Ops for one-byte weights: the largest |x| of each row, casts, and GEMMs. Scales and casts use float even if
 * `real` is double. */
#include "kernels/cpu/gemm.h"

#include <stdlib.h>

#include "base/mem.h"
#include "kernels/row_scale.h"

void KERNEL(activation)(const Call *);

/* Returns the largest |x|, or NaN if a number is not finite, because the product of 0 and an infinity or NaN is
 * NaN. */
static real amax_of(const real *x, int64_t n) {
    real most = 0, zero = 0;
#pragma omp simd reduction(max : most) reduction(+ : zero)
    for (int64_t i = 0; i < n; i++) {
        const real size = REAL_MATH(fabs)(x[i]);
        most = size > most ? size : most;
        zero += x[i] * 0;
    }
    return zero == 0 ? most : (real)NAN;
}

static void amax_rows(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const int64_t n = tensor_width(c->in[0]);
    for (int64_t r = begin; r < end; r++) reals(c->out[0])[r] = amax_of(reals(c->in[0]) + r * n, n);
}

void KERNEL(row_amax)(const Call *c) {
    const Tensor *x = c->in[0];
    pool_for(c->device->pool, tensor_rows(x), grain_rows(tensor_width(x)), amax_rows, (void *)c);
}

/* ---- casts ---- */

static float largest_of(DType t) { return t == I8 ? ROW_LARGEST_I8 : ROW_LARGEST_E4M3; }

static void cast_rows(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const int64_t n = tensor_width(c->in[0]);
    const DType type = (DType)c->out[0]->dtype;
    real *inverse = reals(c->out[1]);
    for (int64_t r = begin; r < end; r++) {
        const float amax = (float)inverse[r], scale = row_scale(amax, largest_of(type));
        const real *x = reals(c->in[0]) + r * n;
        int8_t *q = (int8_t *)c->out[0]->data + r * n;
        const bool finite = amax <= FLT_MAX;
        for (int64_t i = 0; i < n; i++) {
            const float y = finite ? (float)x[i] * scale : 0;
            q[i] = type == I8 ? (int8_t)rintf(fminf(fmaxf(y, -ROW_LARGEST_I8), ROW_LARGEST_I8))
                              : (int8_t)fp8_from_float(E4M3, y);
        }
        inverse[r] = (real)row_inverse(amax, largest_of(type));
    }
}

void KERNEL(row_cast)(const Call *c) {
    const Tensor *x = c->in[0];
    pool_for(c->device->pool, tensor_rows(x), grain_rows(tensor_width(x)), cast_rows, (void *)c);
}

/* ---- GEMMs ---- */

/* The rows of x, rounded to FP8 numbers that have not yet been divided by the rows' scales. */
typedef struct Rounding {
    const Call *call;
    real *x, *inverse;
} Rounding;

static void round_rows(void *arg, int64_t begin, int64_t end) {
    const Rounding *to = arg;
    const Tensor *x = to->call->in[0], *amaxes = to->call->in[4];
    const int64_t n = tensor_width(x);
    for (int64_t r = begin; r < end; r++) {
        const real *from = reals(x) + r * n;
        const float amax = (float)(amaxes ? reals(amaxes)[r] : amax_of(from, n)),
                    scale = row_scale(amax, ROW_LARGEST_E4M3);
        for (int64_t i = 0; i < n; i++)
            to->x[r * n + i] = (real)fp8_to_float(E4M3, fp8_from_float(E4M3, (float)from[i] * scale));
        to->inverse[r] = (real)row_inverse(amax, ROW_LARGEST_E4M3);
    }
}

void KERNEL(linear_quantized)(const Call *c) {
    const Tensor *x = c->in[0], *w = c->in[1];
    const LinearAttr *attr = c->attr;
    const int64_t m = tensor_rows(x), in = w->dim[1], out = w->dim[0];
    const bool rounds = w->dtype == F8E4M3;
    Rounding q = {.call = c};
    if (rounds) {
        q.x = mem_aligned((size_t)(m * in + 1) * sizeof(real));
        q.inverse = mem_aligned((size_t)(m + 1) * sizeof(real));
        pool_for(c->device->pool, m, grain_rows(in), round_rows, &q);
    }
    KERNEL(gemm)
    (c->device, &(Gemm){.transpose_b = true,
                        .fixed_order = attr->fixed_order,
                        .m = m,
                        .n = out,
                        .k = in,
                        .a = rounds ? q.x : reals(x),
                        .lda = in,
                        .b_narrow = w->data,
                        .b_type = (DType)w->dtype,
                        .ldb = in,
                        .c = reals(c->out[0]),
                        .ldc = out,
                        .row_scale = q.inverse,
                        .column_scale = reals(c->in[3]),
                        .bias = c->in[2] ? reals(c->in[2]) : NULL});
    free(q.x), free(q.inverse);
    const ActivationAttr activation = {.kind = attr->activation};
    if (c->out[1]) KERNEL(activation)
    (&(Call){.in = {c->out[0]}, .out = {c->out[1]}, .attr = &activation, .device = c->device});
}
