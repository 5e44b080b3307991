/* Functions that the kernels of Mamba-2 share. They access operands element by element. */
#pragma once

#include "kernels/cuda/common.cuh"

enum { THREADS = 256, PART = 64 /* number of positions in a partial sum */ };

template <typename R> __device__ __forceinline__ R sigmoid(R x) { return 1 / (1 + exp(-x)); }
/* As in PyTorch, softplus is the identity above 20. */
template <typename R> __device__ __forceinline__ R softplus(R a) { return a > 20 ? a : log1p(exp(a)); }
template <typename R> __device__ __forceinline__ R softplus_slope(R a) { return a > 20 ? (R)1 : sigmoid(a); }

static inline void same_type(const char *op, const Tensor *a, const Tensor *b) {
    CHECK(!b || a->dtype == b->dtype, "%s: operands are %s and %s", op, dtype_name((DType)a->dtype),
          dtype_name((DType)b->dtype));
}

/* Adds the sums of columns first, first + 1, ... of partial [b,parts,width] to out, or writes them. A sample's
 * parts are added in order, then the samples. Element e of out is column first + e % taps * (n / taps) + e / taps. */
template <typename R>
static __global__ void sum_samples(const R *partial, int64_t b, int64_t parts, int64_t width, int64_t first,
                                   int64_t taps, Cells out, int64_t n, bool add) {
    GRID_LOOP(e, n) {
        const R *from = partial + first + e % taps * (n / taps) + e / taps;
        R all = add ? out.get<R>(e) : (R)0;
        for (int64_t sample = 0; sample < b; sample++) {
            R sum = 0;
            for (int64_t part = 0; part < parts; part++, from += width) sum += *from;
            all += sum;
        }
        out.put(e, all);
    }
}

/* Does nothing if out is NULL. */
template <typename R>
static void add_samples(const Call *c, const R *partial, int64_t b, int64_t parts, int64_t width,
                        int64_t first, int64_t taps, const Tensor *out) {
    if (!out) return;
    const int64_t n = tensor_count(out);
    sum_samples<R><<<grid_for(c, n, THREADS), THREADS, 0, stream_of(c)>>>(
        partial, b, parts, width, first, taps, cells(out), n, accumulates(out));
    LAUNCHED();
}
