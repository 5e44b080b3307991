/* Computes exp and the logistic function as accurately as the storage type T needs.
 *
 * With 16-bit storage, the exact functions would take longer than the memory accesses. For results other than 0, the
 * relative errors of the approximations of exp and of the division are below 2^-17, which is 1/64 of fp16's rounding
 * error. Subnormal numbers are replaced by 0. */
#pragma once

#include "kernels/cuda/common.cuh"

__device__ __forceinline__ float rough_exp(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f));
    return y;
}
__device__ __forceinline__ float rough_reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

template <typename T> __device__ __forceinline__ Real<T> exponential(Real<T> x) {
    if constexpr (sizeof(T) == 2)
        return rough_exp(x);
    else
        return exp(x);
}

/* Returns 1 / (1 + exp(-x)). */
template <typename T> __device__ __forceinline__ Real<T> logistic(Real<T> x) {
    if constexpr (sizeof(T) == 2)
        return rough_reciprocal(1 + rough_exp(-x));
    else
        return 1 / (1 + exp(-x));
}
