/* y is the sum of the heads of x, in order. y is written or accumulated. */
#include "kernels/cpu/real.h"

static void sum_heads(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const Tensor *x = c->in[0], *y = c->out[0];
    const int64_t heads = x->dim[2] * x->dim[3], width = tensor_width(x);
    for (int64_t token = begin; token < end; token++) {
        real *out = reals(y) + tensor_row_offset(y, token);
        for (int64_t i = 0; i < width; i++) {
            real sum = 0;
            for (int64_t h = token * heads; h < (token + 1) * heads; h++)
                sum += reals(x)[tensor_row_offset(x, h) + i];
            out[i] = accumulates(y) ? out[i] + sum : sum;
        }
    }
}

void KERNEL(sum_heads)(const Call *c) {
    const Tensor *x = c->in[0];
    pool_for(c->device->pool, x->dim[0] * x->dim[1], grain_rows(x->dim[2] * x->dim[3] * tensor_width(x)),
             sum_heads, (void *)c);
}
