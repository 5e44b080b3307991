/* Computes the op of kernels/cpu/largest.c. One block processes one row. */
#include "kernels/cuda/pdl.cuh"
#include "kernels/cuda/vectors.cuh"

#include <limits.h>

enum { THREADS = 1024 };

/* An element and its index. The better of two elements is the larger one or, if they are equal, the earlier one. */
template <typename R> struct Best {
    R x;
    int i; /* INT_MAX if there is no element */

    __device__ __forceinline__ void take_from_lanes() {
#pragma unroll
        for (int k = 16; k > 0; k /= 2) {
            const R y = __shfl_xor_sync(0xffffffffu, x, k);
            const int j = __shfl_xor_sync(0xffffffffu, i, k);
            if (y > x || (y == x && j < i)) x = y, i = j;
        }
    }
};

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    find_largest(const T *x, int64_t width, int64_t n, bool aligned, int64_t *index) {
    typedef Real<T> R;
    constexpr int N = VEC<T>;
    __shared__ Best<R> room[THREADS / 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    start_pdl();
    x += blockIdx.x * width;
    Best<R> best = {-(R)INFINITY, INT_MAX};
    R outside = 0; /* NaN if an element is not finite */
#pragma unroll 4
    for (int i = threadIdx.x; i < (int)((n + N - 1) / N); i += THREADS) {
        const Run<T, N> v = load_run<T, N>(x, (int64_t)i * N, n, aligned);
#pragma unroll
        for (int k = 0; k < N; k++) {
            const R y = v.get(k);
            const int j = i * N + k;
            if (j >= n) continue;
            outside += y * 0;
            if (y > best.x) best.x = y, best.i = j;
        }
    }
    const bool finite = __syncthreads_and(outside == 0);
    best.take_from_lanes();
    if (lane == 0) room[warp] = best;
    __syncthreads();
    if (warp) return;
    best = room[lane];
    best.take_from_lanes();
    if (lane == 0) index[blockIdx.x] = finite ? best.i : -1;
}

extern "C" void cuda_largest(const Call *c) {
    const Tensor *x = c->in[0];
    const int64_t n = ((const LargestAttr *)c->attr)->n, width = tensor_width(x), rows = tensor_rows(x);
    CHECK(n > 0 && n <= width && width <= INT_MAX, "largest: n is %lld, but a row has %lld elements",
          (long long)n, (long long)width);
    if (!rows) return;
    STORAGE_SWITCH(x->dtype, launch_pdl(c, dim3((unsigned)rows), dim3(THREADS), 0, find_largest<T>,
                                        (const T *)data_of<T>(x), width, n, rows_are_aligned(x),
                                        data_of<int64_t>(c->out[0])));
}
