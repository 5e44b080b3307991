/* The scales of FP8 operands, bit by bit those of kernels/cpu/quantize.c. */
#ifndef ISOTRON_KERNELS_CUDA_QUANTIZE_CUH
#define ISOTRON_KERNELS_CUDA_QUANTIZE_CUH

#include <float.h>

#include "kernels/cuda/common.cuh"

__device__ __forceinline__ float scale_for(float amax, float most, float otherwise) {
    if (!(amax > 0) || isinf(amax)) return otherwise;
    const float scale = __fdiv_rn(most, amax);
    return isinf(scale) ? FLT_MAX : scale;
}

/* The powers of two that blocks are scaled by. */
__device__ __forceinline__ float power_of_two_scale(float amax, float most) {
    return __uint_as_float(__float_as_uint(scale_for(amax, most, 1)) & 0xff800000u);
}

/* The largest |x| as a float: rounding keeps the order, so that it may come first. A NaN is passed over. */
template <typename T> __device__ __forceinline__ float larger_size(float most, T x) {
    return fmaxf(most, fabsf((float)to_real<Real<T>>(x)));
}

/* Of a whole tensor. */
__device__ __forceinline__ float scale_of(const Cells &state) {
    const float scale = state.get<float>(0);
    return scale > 0 ? scale : 1;
}

#endif
