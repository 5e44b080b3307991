/* Sums of doubles without rounding. A sum is a fixed-point number that is wide enough for every double, so the order
 * and grouping of additions cannot change the result. The method is Kulisch's long accumulator, with 32-bit limbs as in
 * Neal, "Fast exact summation using small and large superaccumulators", 2015. */
#pragma once

#include <stdint.h>

enum { EXACT_LIMBS = 68 }; /* bits for 2^-1074 .. 2^1024, and 78 bits for carries */

/* An exact sum. Normal sums (see exact_add) from several ranks can be added field by field, as int64_t[EXACT_WORDS]. */
typedef struct ExactSum {
    int64_t limb[EXACT_LIMBS]; /* the unit of limb i is 2^(32 i - 1074) */
    int64_t plus_infinities, minus_infinities, nans;
} ExactSum;
enum { EXACT_WORDS = EXACT_LIMBS + 3 };

/* Adds n numbers to the sum and makes it normal: |limb| < 2^32, so 2^30 normal sums can be added without overflow. */
void exact_add(ExactSum *, const double *x, int64_t n);
/* Adds the second sum to the first. Both must be normal, and so is the result. */
void exact_merge(ExactSum *, const ExactSum *);
/* Returns the double nearest to the sum, with ties to even. Infinities and NaN are added as in IEEE 754. */
double exact_value(ExactSum);
