/* copy: y = x, between any two float types or between integers (only F64 can be added to F64); add: y = a + b; scale: y
 * = factor * x; fill: y = value; snap: y = the nearest multiple of 2^-bits. Operands may be strided. The y of add, fill
 * and snap is written; the y of copy and scale is written or accumulated. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/cpu/real.h"

/* An op's units of work. A unit is contiguous in every operand: a slice of GRAIN elements if all operands are
 * contiguous, otherwise a row. */
typedef struct Units {
    const Call *call;
    bool flat;
    int64_t length, count, total;
} Units;

static Units units(const Call *c) {
    const Tensor *y = c->out[0];
    bool flat = tensor_is_contiguous(y);
    for (int i = 0; i < CALL_IN; i++) flat = flat && (!c->in[i] || tensor_is_contiguous(c->in[i]));
    const int64_t total = tensor_count(y), length = flat ? GRAIN : tensor_width(y);
    return (Units){c, flat, length, length ? (total + length - 1) / length : 0, total};
}

static int64_t offset(const Units *u, const Tensor *t, int64_t unit) {
    return u->flat ? unit * u->length : tensor_row_offset(t, unit);
}

static int64_t length(const Units *u, int64_t unit) {
    const int64_t left = u->total - unit * u->length;
    return left < u->length ? left : u->length;
}

static void elementwise_run(const Units *u, PoolFn *fn) {
    pool_for(u->call->device->pool, u->count, grain_rows(u->length), fn, (void *)u);
}

static void copy_units(void *arg, int64_t begin, int64_t end) {
    const Units *u = arg;
    const Tensor *x = u->call->in[0], *y = u->call->out[0];
    const bool add = accumulates(y);
    CHECK(!add || x->dtype == y->dtype, "a copy between %s and %s cannot accumulate",
          dtype_name((DType)x->dtype), dtype_name((DType)y->dtype));
    for (int64_t i = begin; i < end; i++) {
        const int64_t n = length(u, i), from = offset(u, x, i), to = offset(u, y, i);
        if (!add) {
            dtype_convert(tensor_at(y, to), (DType)y->dtype, tensor_at(x, from), (DType)x->dtype, (size_t)n);
            continue;
        }
        const real *in = reals(x) + from;
        real *out = reals(y) + to;
#pragma omp simd
        for (int64_t j = 0; j < n; j++) out[j] += in[j];
    }
}

void KERNEL(copy)(const Call *c) {
    const Units u = units(c);
    elementwise_run(&u, copy_units);
}

static void add_units(void *arg, int64_t begin, int64_t end) {
    const Units *u = arg;
    const Tensor *a = u->call->in[0], *b = u->call->in[1], *y = u->call->out[0];
    for (int64_t i = begin; i < end; i++) {
        const int64_t n = length(u, i);
        const real *p = reals(a) + offset(u, a, i), *q = reals(b) + offset(u, b, i);
        real *out = reals(y) + offset(u, y, i);
#pragma omp simd
        for (int64_t j = 0; j < n; j++) out[j] = p[j] + q[j];
    }
}

void KERNEL(add)(const Call *c) {
    const Units u = units(c);
    elementwise_run(&u, add_units);
}

static void scale_units(void *arg, int64_t begin, int64_t end) {
    const Units *u = arg;
    const Tensor *x = u->call->in[0], *y = u->call->out[0];
    const real factor = (real)((const FactorAttr *)u->call->attr)->factor;
    for (int64_t i = begin; i < end; i++) {
        const int64_t n = length(u, i);
        const real *in = reals(x) + offset(u, x, i);
        real *out = reals(y) + offset(u, y, i);
        if (accumulates(y))
            for (int64_t j = 0; j < n; j++) out[j] += factor * in[j];
        else
            for (int64_t j = 0; j < n; j++) out[j] = factor * in[j];
    }
}

void KERNEL(scale)(const Call *c) {
    const Units u = units(c);
    elementwise_run(&u, scale_units);
}

static void fill_units(void *arg, int64_t begin, int64_t end) {
    const Units *u = arg;
    const Tensor *y = u->call->out[0];
    const real value = (real)((const FillAttr *)u->call->attr)->value;
    for (int64_t i = begin; i < end; i++) {
        real *out = reals(y) + offset(u, y, i);
        const int64_t n = length(u, i);
        if (value == 0) { /* memset overwrites cache lines without reading them first */
            memset(out, 0, (size_t)n * sizeof *out);
            continue;
        }
        for (int64_t j = 0; j < n; j++) out[j] = value;
    }
}

void KERNEL(fill)(const Call *c) {
    const Units u = units(c);
    elementwise_run(&u, fill_units);
}

static void snap_units(void *arg, int64_t begin, int64_t end) {
    const Units *u = arg;
    const Tensor *y = u->call->out[0];
    const real scale = REAL_MATH(ldexp)(1, ((const SnapAttr *)u->call->attr)->bits);
    for (int64_t i = begin; i < end; i++) {
        real *out = reals(y) + offset(u, y, i);
        for (int64_t j = 0, n = length(u, i); j < n; j++)
            out[j] = REAL_MATH(floor)(out[j] * scale + (real)0.5) / scale;
    }
}

void KERNEL(snap)(const Call *c) {
    const Units u = units(c);
    elementwise_run(&u, snap_units);
}
