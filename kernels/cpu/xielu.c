/* xIELU (Huang and Schlag, arXiv 2411.13010), with p = softplus(alpha_p) and n = beta + softplus(alpha_n):
 *
 *   y = beta x + p x^2                              if x > 0
 *   y = beta x + n (exp(min(x, eps)) - 1 - x)       otherwise
 *
 * For each row, the outputs p and n are the sums over the columns, in order, of the gradient of y times the
 * derivative of y with respect to alpha_p or alpha_n. y, p and n are written; dx is written or accumulated. */
#include "kernels/cpu/softplus.h"

typedef struct Curve {
    real p, n, dp, dn, beta, eps; /* dp and dn are the derivatives of softplus at alpha_p and alpha_n */
} Curve;

static Curve curve_of(Tensor *const *in) {
    const real alpha_p = *reals(in[0]), alpha_n = *reals(in[1]), beta = *reals(in[2]);
    return (Curve){.p = softplus(alpha_p),
                   .n = beta + softplus(alpha_n),
                   .dp = softplus_slope(alpha_p),
                   .dn = softplus_slope(alpha_n),
                   .beta = beta,
                   .eps = *reals(in[3])};
}

/* Returns the factor by which n is multiplied in y. */
static real tail(const Curve *c, real x) { return REAL_MATH(expm1)(x < c->eps ? x : c->eps) - x; }
static real tail_slope(const Curve *c, real x) { return x < c->eps ? REAL_MATH(expm1)(x) : -1; }

static void elements(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const Curve a = curve_of(&c->in[1]);
    const real *x = reals(c->in[0]);
    real *y = reals(c->out[0]);
    for (int64_t i = begin; i < end; i++)
        y[i] = a.beta * x[i] + (x[i] > 0 ? a.p * x[i] * x[i] : a.n * tail(&a, x[i]));
}

static void grad_rows(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const Tensor *dx = c->out[0], *p = c->out[1], *n = c->out[2];
    const Curve a = curve_of(&c->in[2]);
    const int64_t f = tensor_width(c->in[1]);
    for (int64_t row = begin; row < end; row++) {
        const real *dy = reals(c->in[0]) + row * f, *x = reals(c->in[1]) + row * f;
        real sum_p = 0, sum_n = 0;
        for (int64_t i = 0; i < f; i++) {
            if (x[i] > 0)
                sum_p += dy[i] * x[i] * x[i];
            else
                sum_n += dy[i] * tail(&a, x[i]);
            if (!dx) continue;
            const real d = dy[i] * (a.beta + (x[i] > 0 ? 2 * a.p * x[i] : a.n * tail_slope(&a, x[i])));
            real *out = reals(dx) + row * f + i;
            *out = accumulates(dx) ? *out + d : d;
        }
        if (p) reals(p)[row] = a.dp * sum_p;
        if (n) reals(n)[row] = a.dn * sum_n;
    }
}

void KERNEL(xielu)(const Call *c) {
    pool_for(c->device->pool, tensor_count(c->in[0]), GRAIN, elements, (void *)c);
}

void KERNEL(xielu_grad)(const Call *c) {
    pool_for(c->device->pool, tensor_rows(c->in[1]), grain_rows(tensor_width(c->in[1])), grad_rows,
             (void *)c);
}
