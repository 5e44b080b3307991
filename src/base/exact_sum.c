#include "base/exact_sum.h"

#include <string.h>

#include "base/exact_round.h"

/* A limb can hold the sum of up to BETWEEN numbers, each below 2^33. */
enum { LIMB_BITS = EXACT_LIMB_BITS, BETWEEN = 1 << 29 };

static void add_one(ExactSum *s, double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    const int exponent = (int)(bits >> 52 & 0x7ff);
    uint64_t mantissa = bits & ((UINT64_C(1) << 52) - 1);
    if (exponent == 0x7ff) {
        s->nans += mantissa != 0;
        s->plus_infinities += !mantissa && x > 0;
        s->minus_infinities += !mantissa && x < 0;
        return;
    }
    mantissa |= (uint64_t)(exponent > 0) << 52;
    const int at = exponent > 0 ? exponent - 1 : 0; /* position of the lowest bit, relative to 2^-1074 */
    const unsigned __int128 wide = (unsigned __int128)mantissa << at % LIMB_BITS;
    const int64_t sign = bits >> 63 ? -1 : 1;
    for (int k = 0; k < 3; k++)
        s->limb[at / LIMB_BITS + k] += sign * (int64_t)(uint32_t)(wide >> k * LIMB_BITS);
}

void exact_add(ExactSum *s, const double *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        add_one(s, x[i]);
        if (i % BETWEEN == BETWEEN - 1) exact_normalise(s);
    }
    exact_normalise(s);
}

void exact_merge(ExactSum *s, const ExactSum *other) {
    for (int i = 0; i < EXACT_LIMBS; i++) s->limb[i] += other->limb[i];
    s->plus_infinities += other->plus_infinities;
    s->minus_infinities += other->minus_infinities;
    s->nans += other->nans;
    exact_normalise(s);
}

double exact_value(ExactSum s) {
    const uint64_t bits = exact_round(&s);
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
