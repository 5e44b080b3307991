/* exp, the logistic function and softplus, implemented without branches so that compilers can vectorize them.
 * libm's functions are not inlined, and libmvec's functions require -ffast-math. exp: x = n ln2 + r with |r|
 * <= ln2/2, exp(x) = 2^n * (Taylor polynomial of exp at r). The error is below 2 ulp, and infinities and NaN
 * are handled. Subnormal results are replaced by 0, because arithmetic on subnormals is a hundred times
 * slower. */
#pragma once

#include <string.h>

#include "kernels/cpu/real.h"

#ifdef REAL_IS_DOUBLE
typedef int64_t RealBits;
typedef uint64_t RealWord;
enum { EXP_TERMS = 13, EXP_BIAS = 1023, EXP_SHIFT = 52, SOFTPLUS_TERMS = 16 };
#define EXP_LOW   (-708.39) /* the result is 0 for smaller x */
#define EXP_HIGH  710.0     /* the result is infinite for larger x */
#define EXP_MAGIC 0x1.8p52  /* adding and then subtracting this number rounds x to an integer */
#define LN2_HIGH  0x1.62e42feep-1
#define LN2_LOW   0x1.a39ef35793c76p-33
#else
typedef int32_t RealBits;
typedef uint32_t RealWord;
enum { EXP_TERMS = 7, EXP_BIAS = 127, EXP_SHIFT = 23, SOFTPLUS_TERMS = 7 };
#define EXP_LOW   (-87.33f)
#define EXP_HIGH  89.0f
#define EXP_MAGIC 0x1.8p23f
#define LN2_HIGH  0x1.62ep-1f
#define LN2_LOW   0x1.0bfbe8p-15f
#endif

/* clang-format off */
static const double INVERSE_FACTORIAL[] = {
    1.0, 1.0, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040, 1.0 / 40320, 1.0 / 362880, 1.0 / 3628800,
    1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800};
/* clang-format on */

/* Returns 2^n if that is a normal number, otherwise an unspecified value. */
static inline real power_of_two(RealBits n) {
    const RealWord bits = (RealWord)(n + EXP_BIAS) << EXP_SHIFT;
    real x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline real vector_exp(real exponent) {
    real x = exponent < EXP_LOW ? EXP_LOW : exponent;
    x = x > EXP_HIGH ? EXP_HIGH : x;
    const real magic = EXP_MAGIC, shifted = x * (real)1.4426950408889634074 + magic, n = shifted - magic;
    RealBits bits, magic_bits;
    memcpy(&bits, &shifted, sizeof bits);
    memcpy(&magic_bits, &magic, sizeof bits);
    const RealBits power = bits - magic_bits;
    const real r = (x - n * LN2_HIGH) - n * LN2_LOW;
    real p = (real)INVERSE_FACTORIAL[EXP_TERMS];
    for (int i = EXP_TERMS - 1; i >= 0; i--) p = p * r + (real)INVERSE_FACTORIAL[i];
    const RealBits half =
        power >> 1; /* computed as two factors, because 2^power can overflow although the result does not */
    const real y = p * power_of_two(half) * power_of_two(power - half);
    return exponent < EXP_LOW ? 0 : y;
}

/* Returns 1 / (1 + exp(-x)). */
static inline real vector_sigmoid(real x) { return 1 / (1 + vector_exp(-x)); }

/* Returns log(1 + exp(x)) = max(x, 0) + 2 atanh(e / (2 + e)), e = exp(-|x|). The atanh series converges quickly,
 * because its argument is at most 1/3. The error is below 4 ulp; a result below the smallest normal number is replaced
 * by 0. */
static inline real vector_softplus(real x) {
    const real e = vector_exp(x < 0 ? x : -x), z = e / (2 + e), square = z * z;
    real p = 0;
    for (int i = SOFTPLUS_TERMS; i >= 0; i--) p = p * square + 1 / (real)(2 * i + 1);
    return (x > 0 ? x : 0) + 2 * z * p;
}

/* Returns erf(x). In float, the result is x P(x^2) if |x| < 1; otherwise, its absolute value is 1 -
 * exp(-Q(|x|)), which rounds to 1 for |x| >= 4. P and Q interpolate erf(x) / x and -log(1 - erf(x)) at
 * Chebyshev nodes. The error is below 3 ulp. In double, libm's erf is used. */
#ifdef REAL_IS_DOUBLE
static inline real vector_erf(real x) { return erf(x); }
#else
enum { ERF_NEAR_TERMS = 6, ERF_FAR_TERMS = 8 };
/* clang-format off */
static const float ERF_NEAR[] = {1.12837911f, -3.76126260e-1f, 1.12835944e-1f, -2.68542115e-2f,
                                 5.18908724e-3f, -8.01686430e-4f, 7.87587487e-5f},
                   ERF_FAR[] = {-3.20138060e-4f, 1.13023341f, 6.31826043e-1f, 1.10080086e-1f, -2.64211353e-2f,
                                4.75959620e-3f, -5.96805650e-4f, 4.60580450e-5f, -1.63715140e-6f};
/* clang-format on */
static inline real vector_erf(real x) {
    const real size = fabsf(x), most = size > 4 ? 4 : size, square = x * x;
    real near = ERF_NEAR[ERF_NEAR_TERMS], far = ERF_FAR[ERF_FAR_TERMS];
    for (int i = ERF_NEAR_TERMS - 1; i >= 0; i--) near = near * square + ERF_NEAR[i];
    for (int i = ERF_FAR_TERMS - 1; i >= 0; i--) far = far * most + ERF_FAR[i];
    const real tail = 1 - vector_exp(-far);
    return size < 1 ? x * near : x < 0 ? -tail : tail;
}
#endif
