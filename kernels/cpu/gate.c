/* y = x act(z), where act is the sigmoid, or SiLU(z) = z sigmoid(z):
 *
 *   dx = dy act(z),  dz = dy x act'(z)
 *   sigmoid' = sigmoid(z) (1 - sigmoid(z)),  SiLU' = sigmoid(z) (1 + z (1 - sigmoid(z)))
 *
 * y is written; dx and dz are written or accumulated. */
#include "kernels/cpu/softplus.h"

static bool is_silu(const Call *c) { return ((const GateAttr *)c->attr)->silu; }

static void gate_rows(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const Tensor *z = c->in[1];
    const int64_t width = tensor_width(z);
    const bool silu = is_silu(c);
    for (int64_t row = begin; row < end; row++) {
        const real *x = reals(c->in[0]) + row * width, *gate = reals(z) + tensor_row_offset(z, row);
        real *y = reals(c->out[0]) + row * width;
        for (int64_t i = 0; i < width; i++) y[i] = x[i] * sigmoid(gate[i]) * (silu ? gate[i] : 1);
    }
}

void KERNEL(gate)(const Call *c) {
    pool_for(c->device->pool, tensor_rows(c->in[0]), grain_rows(tensor_width(c->in[0])), gate_rows,
             (void *)c);
}

static void put(const Tensor *out, real *to, real value) { *to = accumulates(out) ? *to + value : value; }

static void grad_rows(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const Tensor *z = c->in[2], *dx = c->out[0], *dz = c->out[1];
    const int64_t width = tensor_width(z);
    const bool silu = is_silu(c);
    for (int64_t row = begin; row < end; row++) {
        const int64_t first = row * width;
        const real *dy = reals(c->in[0]) + first, *x = reals(c->in[1]) + first,
                   *gate = reals(z) + tensor_row_offset(z, row);
        for (int64_t i = 0; i < width; i++) {
            const real open = sigmoid(gate[i]);
            const real slope = silu ? open * (1 + gate[i] * (1 - open)) : open * (1 - open);
            if (dx) put(dx, reals(dx) + first + i, dy[i] * open * (silu ? gate[i] : 1));
            if (dz) put(dz, reals(dz) + tensor_row_offset(dz, row) + i, dy[i] * x[i] * slope);
        }
    }
}

void KERNEL(gate_grad)(const Call *c) {
    pool_for(c->device->pool, tensor_rows(c->in[1]), grain_rows(tensor_width(c->in[1])), grad_rows,
             (void *)c);
}
