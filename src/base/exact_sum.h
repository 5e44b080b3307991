/* Sums of doubles without rounding: fixed-point numbers wide enough for every double, so that neither the
 * order nor the grouping of the additions can change the result. After Kulisch's long accumulator, in limbs
 * of 32 bits as in Neal, "Fast exact summation using small and large superaccumulators", 2015. */
#pragma once

#include <stdint.h>

enum { EXACT_LIMBS = 68 }; /* 2^-1074 .. 2^1024 and 78 bits for carries */

/* The normal sums of several ranks may be added field by field, as int64_t[EXACT_WORDS]. */
typedef struct ExactSum {
    int64_t limb[EXACT_LIMBS]; /* limb i counts 2^(32 i - 1074) */
    int64_t plus_infinities, minus_infinities, nans;
} ExactSum;
enum { EXACT_WORDS = EXACT_LIMBS + 3 };

/* Adds the numbers and leaves the sum normal: |limb| < 2^32, so that 2^30 normal sums can be added. */
void exact_add(ExactSum *, const double *x, int64_t n);
/* Adds a normal sum; the result is normal. */
void exact_merge(ExactSum *, const ExactSum *);
/* The nearest double, ties to even; infinities and NaN as IEEE 754 adds them. */
double exact_value(ExactSum);
