/* Multiplies elements by random factors. Dropout (Srivastava et al. 2014) multiplies the kept elements by 1 /
 * (1 - rate). Jitter factors (Fedus et al. 2021) are uniform in (1 - rate, 1 + rate). Both ops are linear in x, so
 * applying an op to dy yields its gradient. y is written or accumulated. */
#include "kernels/cpu/dropout.h"

typedef void Factors(const DropoutAttr *, uint64_t first, int64_t n, real *factor);

typedef struct Noise {
    const Call *call;
    Factors *factors;
} Noise;

static void jitter_factors(const DropoutAttr *a, uint64_t first, int64_t n, real *factor) {
    for (int64_t i = 0; i < n; i++) {
        const double uniform = (philox_u32(a->seed, a->site, first + (uint64_t)i) + 0.5) * 0x1p-32;
        factor[i] = (real)(1 + a->rate * (2 * uniform - 1));
    }
}

static void multiply_rows(void *arg, int64_t begin, int64_t end) {
    const Noise *noise = arg;
    const Call *c = noise->call;
    const DropoutAttr *a = c->attr;
    const Tensor *x = c->in[0], *y = c->out[0];
    const int64_t b = x->dim[1], h = x->dim[2];
    const bool add = accumulates(y);
    for (int64_t r = begin; r < end; r++) {
        const int64_t token = (a->first_sample + r % b) * a->seq_total + slice_position(&a->slice, r / b);
        for (int64_t first = 0; first < h; first += DROPOUT_CHUNK) {
            const int64_t n = h - first < DROPOUT_CHUNK ? h - first : DROPOUT_CHUNK;
            const real *in = reals(x) + r * h + first;
            real *out = reals(y) + r * h + first, factor[DROPOUT_CHUNK];
            noise->factors(a, (uint64_t)(token * h + first), n, factor);
#pragma omp simd
            for (int64_t i = 0; i < n; i++) out[i] = add ? out[i] + in[i] * factor[i] : in[i] * factor[i];
        }
    }
}

static void multiply(const Call *c, Factors *factors) {
    const Tensor *x = c->in[0];
    Noise noise = {c, factors};
    pool_for(c->device->pool, tensor_rows(x), grain_rows(tensor_width(x)), multiply_rows, &noise);
}

void KERNEL(dropout)(const Call *c) { multiply(c, dropout_factors); }

void KERNEL(jitter)(const Call *c) { multiply(c, jitter_factors); }
