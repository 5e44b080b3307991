/* Merges the results of attention over two sets of keys into the result over all of these keys (Liu et al., "Ring
 * Attention", 2023). With w = exp(lse - m), m = max(lse, sum_lse), and w' likewise,
 *   sum_y = (w y + w' sum_y) / (w + w'),  sum_lse = m + log(w + w').
 * If a row attends to no key of a set, the row's y is 0 and its lse is -inf for that set. sum_y and sum_lse
 * are updated in place, and may be views of some rows of larger tensors. */
#include "kernels/cpu/real.h"

static void merge(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const Tensor *y = c->in[0];
    const int64_t s = y->dim[0], width = tensor_width(y), heads = tensor_rows(y) / s;
    for (int64_t line = begin; line < end; line++) {
        const int64_t head = line % heads, row = line / heads;
        real *lse = reals(c->out[1]) + tensor_row_offset(c->out[1], head) + row;
        const real a = reals(c->in[1])[head * s + row], b = *lse, max = a > b ? a : b;
        if (a == -(real)INFINITY) continue;
        const real from = REAL_MATH(exp)(a - max), into = REAL_MATH(exp)(b - max), sum = from + into;
        const real *add = reals(y) + line * width;
        real *out = reals(c->out[0]) + line * width;
        for (int64_t i = 0; i < width; i++) out[i] = (from * add[i] + into * out[i]) / sum;
        *lse = max + REAL_MATH(log)(sum);
    }
}

void KERNEL(attention_merge)(const Call *c) {
    const Tensor *y = c->in[0];
    pool_for(c->device->pool, tensor_rows(y), grain_rows(tensor_width(y)), merge, (void *)c);
}
