/* Finds the largest of the first `n` elements of each row, and returns its index (the first one, if several are
 * equal). If one of these elements is not finite, the result is -1. */
#include "kernels/cpu/real.h"

#include "base/fault.h"

static void find_largest(void *arg, int64_t begin, int64_t end) {
    const Call *c = arg;
    const Tensor *x = c->in[0];
    const int64_t n = ((const LargestAttr *)c->attr)->n, width = tensor_width(x);
    int64_t *index = c->out[0]->data;
    for (int64_t row = begin; row < end; row++) {
        const real *at = reals(x) + row * width;
        real outside = 0; /* NaN if an element is not finite */
        int64_t best = 0;
        for (int64_t i = 0; i < n; i++) {
            outside += at[i] * 0;
            if (at[i] > at[best]) best = i;
        }
        index[row] = outside == 0 ? best : -1;
    }
}

void KERNEL(largest)(const Call *c) {
    const int64_t n = ((const LargestAttr *)c->attr)->n;
    CHECK(n > 0 && n <= tensor_width(c->in[0]), "largest: n is %lld, but a row has %lld elements",
          (long long)n, (long long)tensor_width(c->in[0]));
    pool_for(c->device->pool, tensor_rows(c->in[0]), 1, find_largest, (void *)c);
}
