/* Functions that the kernels of Mamba-2 share. */
#pragma once

#include "kernels/cuda/common.cuh"

enum { THREADS = 256 };

template <typename R> __device__ __forceinline__ R sigmoid(R x) { return 1 / (1 + exp(-x)); }
/* As in PyTorch, softplus is the identity above 20. */
template <typename R> __device__ __forceinline__ R softplus(R a) { return a > 20 ? a : log1p(exp(a)); }
template <typename R> __device__ __forceinline__ R softplus_slope(R a) { return a > 20 ? (R)1 : sigmoid(a); }

static inline void same_type(const char *op, const Tensor *a, const Tensor *b) {
    CHECK(!b || a->dtype == b->dtype, "%s: operands are %s and %s", op, dtype_name((DType)a->dtype),
          dtype_name((DType)b->dtype));
}
