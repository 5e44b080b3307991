/* Activations. The smooth activations, except GELU erf and tanh, have the form x * sigmoid(t(x)):
 *
 *   GELU tanh (Hendrycks and Gimpel 2016): 0.5 x (1 + tanh(z)) = x sigmoid(2z),
 *     z = sqrt(2/pi) (x + 0.044715 x^3)
 *   quick GELU: x sigmoid(1.702 x);  SiLU: x sigmoid(x)
 *   SwiGLU and GeGLU (Shazeer 2020): silu(gate) * up and gelu(gate) * up; ActivationAttr describes the limits
 *     and the offset of GPT-OSS. The derivative of a limited operand is 0 beyond its limit, and 1 at the
 *     limit.
 *   GELU erf: x Phi(x); ReLU: max(x, 0); squared ReLU (So et al. 2021): max(x, 0)^2; tanh (BERT's pooler)
 *
 * y is written. dx is written or accumulated, and may share the memory of dy unless the activation is gated or
 * scaled. With a scale, results are bitwise equal to those of two ops, the activation and scale_rows: the
 * activation and its gradient are rounded to their stored type, as if they were written to memory. */
#include <stdlib.h>

#include "base/mem.h"
#include "kernels/cpu/vector_math.h"

#define INLINE                                                                                               \
    static inline __attribute__((always_inline)) /* inlined, so that `kind` is a constant in each loop */

#define GELU_LINEAR ((real)1.5957691216057307117598) /* 2 sqrt(2/pi) */
#define GELU_CUBIC  ((real)(0.044715 * 1.5957691216057307117598))

INLINE real normal_cdf(real x) { return (real)0.5 * (1 + vector_erf(x * (real)M_SQRT1_2)); }

INLINE real value(Activation kind, real x) {
    switch (kind) {
    case ACT_GELU_TANH:
        return x * vector_sigmoid(x * (GELU_LINEAR + GELU_CUBIC * x * x));
    case ACT_GELU_ERF:
        return x * normal_cdf(x);
    case ACT_QUICK_GELU:
        return x * vector_sigmoid((real)1.702 * x);
    case ACT_SQUARED_RELU:
        return x > 0 ? x * x : 0;
    case ACT_RELU:
        return x > 0 ? x : 0;
    case ACT_TANH:
        return REAL_MATH(tanh)(x);
    default:
        return x * vector_sigmoid(x);
    }
}

/* Returns the derivative of x sigmoid(t(x)), given t and its derivative dt. */
INLINE real gated_slope(real x, real t, real dt) {
    const real p = vector_sigmoid(t);
    return p + x * p * (1 - p) * dt;
}

INLINE real slope(Activation kind, real x) {
    switch (kind) {
    case ACT_GELU_TANH:
        return gated_slope(x, x * (GELU_LINEAR + GELU_CUBIC * x * x), GELU_LINEAR + 3 * GELU_CUBIC * x * x);
    case ACT_GELU_ERF:
        return normal_cdf(x) + x * vector_exp((real)-0.5 * x * x) * (real)0.3989422804014326779399;
    case ACT_QUICK_GELU:
        return gated_slope(x, (real)1.702 * x, (real)1.702);
    case ACT_SQUARED_RELU:
        return x > 0 ? 2 * x : 0;
    case ACT_RELU:
        return x > 0 ? 1 : 0;
    case ACT_TANH:
        return 1 - REAL_MATH(tanh)(x) * REAL_MATH(tanh)(x);
    default:
        return gated_slope(x, x, 1);
    }
}

/* How dx is stored: written, added to the existing values, or (IN_PLACE) written over dy. */
typedef enum Placing { WRITTEN, ADDED, IN_PLACE } Placing;

/* The loop has no `omp simd`, because the compiler would warn that it cannot vectorize tanh, or erf of
 * doubles. */
INLINE void map(Activation kind, const real *restrict x, real *restrict y, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = value(kind, x[i]);
}

INLINE void map_slope(Activation kind, const real *restrict dy, const real *restrict x, real *restrict dx,
                      int64_t n, Placing placing) {
    if (placing == IN_PLACE)
        for (int64_t i = 0; i < n; i++) dx[i] *= slope(kind, x[i]);
    else if (placing == ADDED)
        for (int64_t i = 0; i < n; i++) dx[i] += dy[i] * slope(kind, x[i]);
    else
        for (int64_t i = 0; i < n; i++) dx[i] = dy[i] * slope(kind, x[i]);
}

/* ---- n elements ---- */

static void plain(Activation kind, const real *x, real *y, int64_t n) {
    switch (kind) {
    case ACT_GELU_TANH:
        map(ACT_GELU_TANH, x, y, n);
        break;
    case ACT_GELU_ERF:
        map(ACT_GELU_ERF, x, y, n);
        break;
    case ACT_QUICK_GELU:
        map(ACT_QUICK_GELU, x, y, n);
        break;
    case ACT_TANH:
        map(ACT_TANH, x, y, n);
        break;
    case ACT_SQUARED_RELU:
        map(ACT_SQUARED_RELU, x, y, n);
        break;
    default:
        map(ACT_RELU, x, y, n);
    }
}

static void plain_grad(Activation kind, const real *dy, const real *x, real *dx, int64_t n, Placing placing) {
    switch (kind) {
    case ACT_GELU_TANH:
        map_slope(ACT_GELU_TANH, dy, x, dx, n, placing);
        break;
    case ACT_GELU_ERF:
        map_slope(ACT_GELU_ERF, dy, x, dx, n, placing);
        break;
    case ACT_QUICK_GELU:
        map_slope(ACT_QUICK_GELU, dy, x, dx, n, placing);
        break;
    case ACT_TANH:
        map_slope(ACT_TANH, dy, x, dx, n, placing);
        break;
    case ACT_SQUARED_RELU:
        map_slope(ACT_SQUARED_RELU, dy, x, dx, n, placing);
        break;
    default:
        map_slope(ACT_RELU, dy, x, dx, n, placing);
    }
}

/* ---- gated rows of f gates and f elements of `up` ---- */

INLINE void swiglu_row(const real *gate, real *y, int64_t f) {
    const real *up = gate + f;
#pragma omp simd
    for (int64_t i = 0; i < f; i++) y[i] = value(ACT_SWIGLU, gate[i]) * up[i];
}

INLINE void swiglu_grad_row(const real *dy, const real *gate, real *dgate, int64_t f, bool add) {
    const real *up = gate + f;
    real *dup = dgate + f;
#pragma omp simd
    for (int64_t i = 0; i < f; i++) {
        const real p = vector_sigmoid(gate[i]), silu = gate[i] * p;
        const real of_gate = dy[i] * up[i] * (p + silu * (1 - p)), of_up = dy[i] * silu;
        dgate[i] = add ? dgate[i] + of_gate : of_gate;
        dup[i] = add ? dup[i] + of_up : of_up;
    }
}

/* Computes a row of a gated activation with limits and an offset. */
INLINE void limited_row(Activation act, const ActivationAttr *a, const real *gate, real *y, int64_t f) {
    const real *up = gate + f, limit = a->limit > 0 ? (real)a->limit : INFINITY, offset = (real)a->offset;
    for (int64_t i = 0; i < f; i++) {
        const real g = gate[i] > limit ? limit : gate[i], u = up[i] > limit    ? limit
                                                              : up[i] < -limit ? -limit
                                                                               : up[i];
        y[i] = value(act, g) * (u + offset);
    }
}

INLINE void limited_grad_row(Activation act, const ActivationAttr *a, const real *dy, const real *gate,
                             real *dgate, int64_t f, bool add) {
    const real *up = gate + f, limit = a->limit > 0 ? (real)a->limit : INFINITY, offset = (real)a->offset;
    real *dup = dgate + f;
    for (int64_t i = 0; i < f; i++) {
        const bool gate_moves = !(gate[i] > limit), up_moves = !(up[i] > limit || up[i] < -limit);
        const real g = gate_moves ? gate[i] : limit, u = up_moves ? up[i] : up[i] > 0 ? limit : -limit;
        const real of_gate = gate_moves ? dy[i] * (u + offset) * slope(act, g) : 0,
                   of_up = up_moves ? dy[i] * value(act, g) : 0;
        dgate[i] = add ? dgate[i] + of_gate : of_gate;
        dup[i] = add ? dup[i] + of_up : of_up;
    }
}

/* Returns true if the activation is SwiGLU without limits, for which there is faster code. */
static bool is_plain_swiglu(const ActivationAttr *a) {
    return a->kind == ACT_SWIGLU && a->limit == 0 && a->offset == 0;
}

static void gated(const ActivationAttr *a, const real *gate, real *y, int64_t f) {
    switch (a->kind) {
    case ACT_GEGLU_TANH:
        limited_row(ACT_GELU_TANH, a, gate, y, f);
        break;
    case ACT_GEGLU_ERF:
        limited_row(ACT_GELU_ERF, a, gate, y, f);
        break;
    case ACT_QUICK_GEGLU:
        limited_row(ACT_QUICK_GELU, a, gate, y, f);
        break;
    default:
        if (is_plain_swiglu(a))
            swiglu_row(gate, y, f);
        else
            limited_row(ACT_SWIGLU, a, gate, y, f);
    }
}

static void gated_grad(const ActivationAttr *a, const real *dy, const real *gate, real *dgate, int64_t f,
                       bool add) {
    switch (a->kind) {
    case ACT_GEGLU_TANH:
        limited_grad_row(ACT_GELU_TANH, a, dy, gate, dgate, f, add);
        break;
    case ACT_GEGLU_ERF:
        limited_grad_row(ACT_GELU_ERF, a, dy, gate, dgate, f, add);
        break;
    case ACT_QUICK_GEGLU:
        limited_grad_row(ACT_QUICK_GELU, a, dy, gate, dgate, f, add);
        break;
    default:
        if (!is_plain_swiglu(a))
            limited_grad_row(ACT_SWIGLU, a, dy, gate, dgate, f, add);
        else if (add)
            swiglu_grad_row(dy, gate, dgate, f, true);
        else
            swiglu_grad_row(dy, gate, dgate, f, false);
    }
}

/* ---- rows ---- */

static const ActivationAttr *attr_of(const Call *c) { return c->attr; }

static void activate(const ActivationAttr *a, const real *x, real *y, int64_t f) {
    if (activation_is_gated(a->kind))
        gated(a, x, y, f);
    else
        plain(a->kind, x, y, f);
}

static void activate_grad(const ActivationAttr *a, const real *dy, const real *x, real *dx, int64_t f,
                          Placing placing) {
    if (activation_is_gated(a->kind))
        gated_grad(a, dy, x, dx, f, placing == ADDED);
    else
        plain_grad(a->kind, dy, x, dx, f, placing);
}

static void elements(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    activate(c->attr, reals(c->in[0]) + begin, reals(c->out[0]) + begin, end - begin);
}

static void elements_grad(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const real *dy = reals(c->in[0]) + begin;
    real *dx = reals(c->out[0]) + begin;
    activate_grad(c->attr, dy, reals(c->in[1]) + begin, dx, end - begin,
                  dx == dy                 ? IN_PLACE
                  : accumulates(c->out[0]) ? ADDED
                                           : WRITTEN);
}

static void rows(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const int64_t width = tensor_width(c->in[0]), f = tensor_width(c->out[0]);
    for (int64_t r = begin; r < end; r++) {
        real *y = reals(c->out[0]) + r * f;
        activate(c->attr, reals(c->in[0]) + r * width, y, f);
        if (!c->in[1]) continue;
        const real by = reals(c->in[1])[r];
        round_to_stored(c, y, f);
        for (int64_t i = 0; i < f; i++) y[i] *= by;
    }
}

static void rows_grad(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const int64_t f = tensor_width(c->in[0]), width = tensor_width(c->in[1]);
    for (int64_t r = begin; r < end; r++)
        activate_grad(c->attr, reals(c->in[0]) + r * f, reals(c->in[1]) + r * width,
                      reals(c->out[0]) + r * width, f, accumulates(c->out[0]) ? ADDED : WRITTEN);
}

/* `row` first contains a row of the activation, then its gradient. */
static void scaled_rows_grad(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const Tensor *dx = c->out[0], *dscale = c->out[1];
    const int64_t f = tensor_width(c->in[0]), width = tensor_width(c->in[1]);
    real *row = mem_alloc((size_t)(f + 1) * sizeof *row);
    for (int64_t r = begin; r < end; r++) {
        const real *dy = reals(c->in[0]) + r * f, *x = reals(c->in[1]) + r * width, by = reals(c->in[2])[r];
        if (dscale) {
            real dot = 0, *to = reals(dscale) + r;
            activate(c->attr, x, row, f);
            round_to_stored(c, row, f);
            for (int64_t i = 0; i < f; i++) dot += dy[i] * row[i];
            *to = accumulates(dscale) ? *to + dot : dot;
        }
        if (!dx) continue;
        for (int64_t i = 0; i < f; i++) row[i] = dy[i] * by;
        round_to_stored(c, row, f);
        activate_grad(c->attr, row, x, reals(dx) + r * width, f, accumulates(dx) ? ADDED : WRITTEN);
    }
    free(row);
}

void KERNEL(activation)(const Call *c) {
    const Tensor *x = c->in[0];
    if (activation_is_gated(attr_of(c)->kind) || c->in[1])
        pool_for(c->device->pool, tensor_rows(x), grain_rows(tensor_width(x)), rows, (void *)c);
    else
        pool_for(c->device->pool, tensor_count(x), GRAIN, elements, (void *)c);
}

void KERNEL(activation_grad)(const Call *c) {
    const Tensor *x = c->in[1];
    if (c->in[2] || activation_is_gated(attr_of(c)->kind))
        pool_for(c->device->pool, tensor_rows(x), grain_rows(tensor_width(x)),
                 c->in[2] ? scaled_rows_grad : rows_grad, (void *)c);
    else
        pool_for(c->device->pool, tensor_count(x), GRAIN, elements_grad, (void *)c);
}
