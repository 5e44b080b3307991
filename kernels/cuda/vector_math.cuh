/* Computes exp, the logistic function and softplus. The results are bitwise equal to the results of
 * kernels/cpu/vector_math.h, which describes the method. The results must be equal because a router compares
 * scores: a difference in the last bit can change a token's experts. Intrinsics prevent the compiler from
 * fusing multiplications with additions. */
#pragma once

#include "kernels/cuda/common.cuh"

__device__ __forceinline__ float rounded_product(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double rounded_product(double a, double b) { return __dmul_rn(a, b); }
__device__ __forceinline__ float rounded_sum(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ double rounded_sum(double a, double b) { return __dadd_rn(a, b); }

template <typename R> struct ExpFormat;
template <> struct ExpFormat<float> {
    typedef int32_t Bits;
    typedef uint32_t Word;
    static constexpr int TERMS = 7, BIAS = 127, SHIFT = 23, SOFTPLUS_TERMS = 7;
    static constexpr float LOW = -87.33f, HIGH = 89.0f, MAGIC = 0x1.8p23f, LN2_HIGH = 0x1.62ep-1f,
                           LN2_LOW = 0x1.0bfbe8p-15f;
    __device__ static __forceinline__ Word word(float x) { return __float_as_uint(x); }
    __device__ static __forceinline__ float value(Word x) { return __uint_as_float(x); }
};
template <> struct ExpFormat<double> {
    typedef int64_t Bits;
    typedef uint64_t Word;
    static constexpr int TERMS = 13, BIAS = 1023, SHIFT = 52, SOFTPLUS_TERMS = 16;
    static constexpr double LOW = -708.39, HIGH = 710.0, MAGIC = 0x1.8p52, LN2_HIGH = 0x1.62e42feep-1,
                            LN2_LOW = 0x1.a39ef35793c76p-33;
    __device__ static __forceinline__ Word word(double x) { return (Word)__double_as_longlong(x); }
    __device__ static __forceinline__ double value(Word x) { return __longlong_as_double((long long)x); }
};

/* Returns 2^n if that is a normal number, otherwise an unspecified value. */
template <typename R> __device__ __forceinline__ R exp_power(typename ExpFormat<R>::Bits n) {
    typedef ExpFormat<R> F;
    return F::value((typename F::Word)(n + F::BIAS) << F::SHIFT);
}

template <typename R> __device__ __forceinline__ R vector_exp(R exponent) {
    typedef ExpFormat<R> F;
    typedef typename F::Bits Bits;
    constexpr double inverse_factorial[] = {1.0,
                                            1.0,
                                            1.0 / 2,
                                            1.0 / 6,
                                            1.0 / 24,
                                            1.0 / 120,
                                            1.0 / 720,
                                            1.0 / 5040,
                                            1.0 / 40320,
                                            1.0 / 362880,
                                            1.0 / 3628800,
                                            1.0 / 39916800,
                                            1.0 / 479001600,
                                            1.0 / 6227020800};
    const R low = F::LOW, high = F::HIGH, magic = F::MAGIC;
    R x = exponent < low ? low : exponent;
    x = x > high ? high : x;
    const R shifted = rounded_sum(rounded_product(x, (R)1.4426950408889634074), magic), n = shifted - magic;
    const Bits power = (Bits)(F::word(shifted) - F::word(magic)), half = power >> 1;
    R r = rounded_sum(x, -rounded_product(n, F::LN2_HIGH));
    r = rounded_sum(r, -rounded_product(n, F::LN2_LOW));
    R p = (R)inverse_factorial[F::TERMS];
#pragma unroll
    for (int i = F::TERMS - 1; i >= 0; i--) p = rounded_sum(rounded_product(p, r), (R)inverse_factorial[i]);
    const R y = rounded_product(rounded_product(p, exp_power<R>(half)), exp_power<R>(power - half));
    return exponent < low ? 0 : y;
}

/* Returns 1 / (1 + exp(-x)). */
template <typename R> __device__ __forceinline__ R vector_sigmoid(R x) {
    return 1 / rounded_sum((R)1, vector_exp(-x));
}

/* Returns log(1 + exp(x)). */
template <typename R> __device__ __forceinline__ R vector_softplus(R x) {
    const R e = vector_exp(x < 0 ? x : -x), z = e / rounded_sum((R)2, e), square = rounded_product(z, z);
    R p = 0;
#pragma unroll
    for (int i = ExpFormat<R>::SOFTPLUS_TERMS; i >= 0; i--)
        p = rounded_sum(rounded_product(p, square), 1 / (R)(2 * i + 1));
    return rounded_sum(x > 0 ? x : (R)0, rounded_product(2 * z, p));
}
