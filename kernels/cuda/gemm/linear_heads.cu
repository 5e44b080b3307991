/* Computes the op of kernels/cpu/linear_heads.c in a fixed order of summation (ordered_gemm.cuh). Generation
 * has few rows, so reading the weights takes most of the time. A tile consists of 64 outputs for each of 16
 * rows. y is written. */
#include "kernels/cuda/gemm/ordered_gemm.cuh"

enum { OUTPUTS = 64, ROWS = 16 };

/* The numbers of elements between consecutive heads. */
struct HeadStrides {
    int64_t x, w, y;
};

/* g describes the GEMM y^T = op(w) x^T of the first head. */
template <typename R>
static __global__ void __launch_bounds__(ORDERED_THREADS)
    multiply_heads(OrderedGemm g, HeadStrides step, int64_t across) {
    const int64_t head = blockIdx.y;
    g.a_at = head * step.w, g.b_at = head * step.x, g.c_at = head * step.y;
    ordered_tile<R, OUTPUTS, ROWS, 4, 1>(g, blockIdx.x / across * OUTPUTS, blockIdx.x % across * ROWS);
}

extern "C" void cuda_linear_heads(const Call *c) {
    const Tensor *x = c->in[0], *w = c->in[1], *y = c->out[0];
    const bool transposed = ((const LinearHeadsAttr *)c->attr)->transposed;
    OrderedGemm g = {};
    g.a = cells(w), g.b = cells(x), g.c = cells(y);
    g.a_row = transposed ? 1 : w->stride[1], g.a_col = transposed ? w->stride[1] : 1;
    g.b_row = 1, g.b_col = x->stride[1];
    g.c_row = 1, g.c_col = y->stride[1];
    g.m = tensor_width(y), g.n = x->dim[0] * x->dim[1], g.k = tensor_width(x);
    const HeadStrides step = {x->stride[3], w->stride[0], y->stride[3]};
    const int64_t across = ceil_div(g.n, ROWS), tiles = ceil_div(g.m, OUTPUTS) * across;
    if (!tensor_count(y)) return;
    CHECK(tiles <= INT32_MAX && x->dim[3] <= UINT16_MAX, "linear_heads: %lld heads of %lld rows are too many",
          (long long)x->dim[3], (long long)g.n);
    const dim3 grid((unsigned)tiles, (unsigned)x->dim[3]);
    REAL_SWITCH(x->dtype, multiply_heads<R><<<grid, ORDERED_THREADS, 0, stream_of(c)>>>(g, step, across));
    LAUNCHED();
}
