/* Computes the op of kernels/cpu/sum_heads.c. y is written or accumulated. */
#include "kernels/cuda/common.cuh"

enum { THREADS = 256 };

/* Each thread sums one element over all heads of a token. */
template <typename R>
static __global__ void sum_heads(Cells x, Cells y, Rows x_rows, Rows y_rows, int64_t n, int64_t heads,
                                 bool add) {
    GRID_LOOP(i, n) {
        const int64_t token = i / x_rows.width, column = i % x_rows.width;
        R sum = 0;
        for (int64_t h = token * heads; h < (token + 1) * heads; h++) sum += x.get<R>(x_rows(h) + column);
        y.put_or_add(y_rows(token) + column, sum, add);
    }
}

extern "C" void cuda_sum_heads(const Call *c) {
    const Tensor *x = c->in[0], *y = c->out[0];
    const int64_t n = tensor_count(y);
    if (!n) return;
    REAL_SWITCH(x->dtype,
                sum_heads<R><<<grid_for(c, n, THREADS), THREADS, 0, stream_of(c)>>>(
                    cells(x), cells(y), rows_of(x), rows_of(y), n, x->dim[2] * x->dim[3], accumulates(y)));
    LAUNCHED();
}
