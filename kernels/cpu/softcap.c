/* y = cap * tanh(x / cap); the derivative is 1 - tanh(x / cap)^2. y and dx are written. */
#include "kernels/cpu/real.h"

static real cap_of(const Call *c) { return (real)((const SoftcapAttr *)c->attr)->cap; }

static void capped(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const real *x = reals(c->in[0]), cap = cap_of(c);
    real *y = reals(c->out[0]);
    for (int64_t i = begin; i < end; i++) y[i] = cap * REAL_MATH(tanh)(x[i] / cap);
}

static void capped_grad(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const real *dy = reals(c->in[0]), *x = reals(c->in[1]), cap = cap_of(c);
    real *dx = reals(c->out[0]);
    for (int64_t i = begin; i < end; i++) {
        const real t = REAL_MATH(tanh)(x[i] / cap);
        dx[i] = dy[i] * (1 - t * t);
    }
}

void KERNEL(softcap)(const Call *c) {
    pool_for(c->device->pool, tensor_count(c->in[0]), GRAIN, capped, (void *)c);
}

void KERNEL(softcap_grad)(const Call *c) {
    pool_for(c->device->pool, tensor_count(c->in[0]), GRAIN, capped_grad, (void *)c);
}
