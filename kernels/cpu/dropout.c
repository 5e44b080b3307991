/* Dropout (Srivastava et al. 2014), inverted: kept elements are scaled by 1 / (1 - rate). Linear in x, so
 * that the gradient is the same op applied to dy. Written or added to: y. */
#include "kernels/cpu/dropout.h"

static void dropout_rows(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const DropoutAttr *a = c->attr;
    const Tensor *x = c->in[0], *y = c->out[0];
    const int64_t b = x->dim[1], h = x->dim[2];
    const bool add = accumulates(y);
    for (int64_t r = begin; r < end; r++) {
        const int64_t token = (a->first_sample + r % b) * a->seq_total + a->first_position + r / b;
        for (int64_t first = 0; first < h; first += DROPOUT_CHUNK) {
            const int64_t n = h - first < DROPOUT_CHUNK ? h - first : DROPOUT_CHUNK;
            const real *in = reals(x) + r * h + first;
            real *out = reals(y) + r * h + first, factor[DROPOUT_CHUNK];
            dropout_factors(a, (uint64_t)(token * h + first), n, factor);
#pragma omp simd
            for (int64_t i = 0; i < n; i++) out[i] = add ? out[i] + in[i] * factor[i] : in[i] * factor[i];
        }
    }
}

void KERNEL(dropout)(const Call *c) {
    const Tensor *x = c->in[0];
    pool_for(c->device->pool, tensor_rows(x), grain_rows(tensor_width(x)), dropout_rows, (void *)c);
}
