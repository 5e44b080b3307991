/* Computes the scales of FP8 operands. The scales are bitwise equal to those of kernels/cpu/quantize.c. */
#pragma once

#include <float.h>

#include "kernels/cuda/vectors.cuh"

__device__ __forceinline__ float scale_for(float amax, float most, float otherwise) {
    if (!(amax > 0) || isinf(amax)) return otherwise;
    const float scale = __fdiv_rn(most, amax);
    return isinf(scale) ? FLT_MAX : scale;
}

/* Returns the scale of a block. Each block's scale is a power of two. */
__device__ __forceinline__ float power_of_two_scale(float amax, float most) {
    return __uint_as_float(__float_as_uint(scale_for(amax, most, 1)) & 0xff800000u);
}

/* Returns the maximum of `most` and |x| as a float; a NaN is ignored. Rounding x to float is harmless,
 * because rounding is monotonic. */
template <typename T> __device__ __forceinline__ float larger_size(float most, T x) {
    return fmaxf(most, fabsf((float)to_real<Real<T>>(x)));
}

/* Accumulates the largest |x| of many elements; compares 16-bit elements in pairs. */
template <typename T> struct Largest {
    static constexpr bool IN_PAIRS = sizeof(T) == 2;
    typedef typename std::conditional<std::is_same<T, fp16>::value, __half2, __nv_bfloat162>::type Pair;
    typename std::conditional<IN_PAIRS, uint32_t, float>::type most = 0;

    template <int N> __device__ __forceinline__ void take(const Run<T, N> &x) {
        if constexpr (IN_PAIRS) {
#pragma unroll
            for (int i = 0; i < N / 2; i++) {
                Pair so_far, two;
                memcpy(&so_far, &most, sizeof so_far), memcpy(&two, &x.word(i), sizeof two);
                so_far = __hmax2(so_far, __habs2(two));
                memcpy(&most, &so_far, sizeof so_far);
            }
        } else {
#pragma unroll
            for (int k = 0; k < N; k++) most = larger_size(most, x.at(k));
        }
    }
    __device__ __forceinline__ float get() const {
        if constexpr (IN_PAIRS) {
            Run<T, 2> last;
            last.word(0) = most;
            return fmaxf(last.get(0), last.get(1));
        } else {
            return most;
        }
    }
};

/* Returns the scale in the state that begins at `state[at]`. */
__device__ __forceinline__ float scale_of(const Cells &state, int64_t at = 0) {
    const float scale = state.get<float>(at);
    return scale > 0 ? scale : 1;
}
