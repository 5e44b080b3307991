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
 * y is written. dx is written or accumulated, and may share the memory of dy unless the activation is
 * gated. */
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

static Activation kind_of(const Call *c) { return ((const ActivationAttr *)c->attr)->kind; }

static void elements(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const real *x = reals(c->in[0]) + begin;
    real *y = reals(c->out[0]) + begin;
    const int64_t n = end - begin;
    switch (kind_of(c)) {
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

static void elements_grad(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const real *dy = reals(c->in[0]) + begin, *x = reals(c->in[1]) + begin;
    real *dx = reals(c->out[0]) + begin;
    const int64_t n = end - begin;
    const Placing placing = dx == dy ? IN_PLACE : accumulates(c->out[0]) ? ADDED : WRITTEN;
    switch (kind_of(c)) {
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

static void swiglu_rows(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const int64_t f = tensor_width(c->out[0]);
    for (int64_t r = begin; r < end; r++) {
        const real *gate = reals(c->in[0]) + r * 2 * f, *up = gate + f;
        real *y = reals(c->out[0]) + r * f;
#pragma omp simd
        for (int64_t i = 0; i < f; i++) y[i] = value(ACT_SWIGLU, gate[i]) * up[i];
    }
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

static void swiglu_grad_rows(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const int64_t f = tensor_width(c->in[0]);
    for (int64_t r = begin; r < end; r++) {
        const real *dy = reals(c->in[0]) + r * f, *gate = reals(c->in[1]) + r * 2 * f;
        real *dgate = reals(c->out[0]) + r * 2 * f;
        if (accumulates(c->out[0]))
            swiglu_grad_row(dy, gate, dgate, f, true);
        else
            swiglu_grad_row(dy, gate, dgate, f, false);
    }
}

/* Computes a row of a gated activation with limits and an offset. */
INLINE void gated_row(Activation act, const ActivationAttr *a, const real *gate, real *y, int64_t f) {
    const real *up = gate + f, limit = a->limit > 0 ? (real)a->limit : INFINITY, offset = (real)a->offset;
    for (int64_t i = 0; i < f; i++) {
        const real g = gate[i] > limit ? limit : gate[i], u = up[i] > limit    ? limit
                                                              : up[i] < -limit ? -limit
                                                                               : up[i];
        y[i] = value(act, g) * (u + offset);
    }
}

static void gated_rows(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const ActivationAttr *a = c->attr;
    const int64_t f = tensor_width(c->out[0]);
    for (int64_t r = begin; r < end; r++) {
        const real *gate = reals(c->in[0]) + r * 2 * f;
        real *y = reals(c->out[0]) + r * f;
        switch (a->kind) {
        case ACT_GEGLU_TANH:
            gated_row(ACT_GELU_TANH, a, gate, y, f);
            break;
        case ACT_GEGLU_ERF:
            gated_row(ACT_GELU_ERF, a, gate, y, f);
            break;
        case ACT_QUICK_GEGLU:
            gated_row(ACT_QUICK_GELU, a, gate, y, f);
            break;
        default:
            gated_row(ACT_SWIGLU, a, gate, y, f);
        }
    }
}

INLINE void gated_grad_row(Activation act, const ActivationAttr *a, const real *dy, const real *gate,
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

static void gated_grad_rows(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const ActivationAttr *a = c->attr;
    const int64_t f = tensor_width(c->in[0]);
    const bool add = accumulates(c->out[0]);
    for (int64_t r = begin; r < end; r++) {
        const real *dy = reals(c->in[0]) + r * f, *gate = reals(c->in[1]) + r * 2 * f;
        real *dgate = reals(c->out[0]) + r * 2 * f;
        switch (a->kind) {
        case ACT_GEGLU_TANH:
            gated_grad_row(ACT_GELU_TANH, a, dy, gate, dgate, f, add);
            break;
        case ACT_GEGLU_ERF:
            gated_grad_row(ACT_GELU_ERF, a, dy, gate, dgate, f, add);
            break;
        case ACT_QUICK_GEGLU:
            gated_grad_row(ACT_QUICK_GELU, a, dy, gate, dgate, f, add);
            break;
        default:
            gated_grad_row(ACT_SWIGLU, a, dy, gate, dgate, f, add);
        }
    }
}

/* Returns true if the activation is SwiGLU without limits, the case with faster kernels. */
static bool is_plain_swiglu(const Call *c) {
    const ActivationAttr *a = c->attr;
    return a->kind == ACT_SWIGLU && a->limit == 0 && a->offset == 0;
}

void KERNEL(activation)(const Call *c) {
    const Tensor *x = c->in[0];
    if (activation_is_gated(kind_of(c)))
        pool_for(c->device->pool, tensor_rows(x), grain_rows(tensor_width(x)),
                 is_plain_swiglu(c) ? swiglu_rows : gated_rows, (void *)c);
    else
        pool_for(c->device->pool, tensor_count(x), GRAIN, elements, (void *)c);
}

void KERNEL(activation_grad)(const Call *c) {
    const Tensor *x = c->in[1];
    if (activation_is_gated(kind_of(c)))
        pool_for(c->device->pool, tensor_rows(x), grain_rows(tensor_width(x)),
                 is_plain_swiglu(c) ? swiglu_grad_rows : gated_grad_rows, (void *)c);
    else
        pool_for(c->device->pool, tensor_count(x), GRAIN, elements_grad, (void *)c);
}
