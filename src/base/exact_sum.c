#include "base/exact_sum.h"

#include <math.h>
#include <string.h>

enum { LIMB_BITS = 32, LOWEST = -1074, BETWEEN = 1 << 29 /* additions of less than 2^33 fit a limb */ };

static void normalise(ExactSum *s) {
    int64_t carry = 0;
    for (int i = 0; i < EXACT_LIMBS - 1; i++) {
        const int64_t x = s->limb[i] + carry;
        carry = x / (INT64_C(1) << LIMB_BITS);
        s->limb[i] = x % (INT64_C(1) << LIMB_BITS);
    }
    s->limb[EXACT_LIMBS - 1] += carry;
}

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
    const int at = exponent > 0 ? exponent - 1 : 0; /* above 2^LOWEST */
    const unsigned __int128 wide = (unsigned __int128)mantissa << at % LIMB_BITS;
    const int64_t sign = bits >> 63 ? -1 : 1;
    for (int k = 0; k < 3; k++)
        s->limb[at / LIMB_BITS + k] += sign * (int64_t)(uint32_t)(wide >> k * LIMB_BITS);
}

void exact_add(ExactSum *s, const double *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        add_one(s, x[i]);
        if (i % BETWEEN == BETWEEN - 1) normalise(s);
    }
    normalise(s);
}

void exact_merge(ExactSum *s, const ExactSum *other) {
    for (int i = 0; i < EXACT_LIMBS; i++) s->limb[i] += other->limb[i];
    s->plus_infinities += other->plus_infinities;
    s->minus_infinities += other->minus_infinities;
    s->nans += other->nans;
    normalise(s);
}

/* Limbs of one sign, that of the highest: all in [0, 2^32) but perhaps the last. */
static double take_sign(ExactSum *s) {
    int top = EXACT_LIMBS - 1;
    while (top >= 0 && !s->limb[top]) top--;
    const double sign = top >= 0 && s->limb[top] < 0 ? -1 : 1;
    int64_t borrow = 0;
    for (int i = 0; i <= top; i++) {
        int64_t x = (sign < 0 ? -s->limb[i] : s->limb[i]) - borrow;
        borrow = x < 0 && i < top;
        s->limb[i] = borrow ? x + (INT64_C(1) << LIMB_BITS) : x;
    }
    return sign;
}

/* Bits [from, from + n) of the magnitude, n <= 64. */
static uint64_t bits_at(const ExactSum *s, int from, int n) {
    unsigned __int128 x = 0;
    for (int k = 2; k >= 0; k--) {
        const int i = from / LIMB_BITS + k;
        x = x << LIMB_BITS | (i < EXACT_LIMBS ? (uint64_t)s->limb[i] : 0);
    }
    return (uint64_t)(x >> from % LIMB_BITS) & (n == 64 ? ~UINT64_C(0) : (UINT64_C(1) << n) - 1);
}

static int any_below(const ExactSum *s, int bit) {
    for (int i = 0; i < bit / LIMB_BITS; i++)
        if (s->limb[i]) return 1;
    return bit % LIMB_BITS && s->limb[bit / LIMB_BITS] & ((INT64_C(1) << bit % LIMB_BITS) - 1);
}

double exact_value(ExactSum s) {
    enum { MANTISSA = 53 };
    normalise(&s);
    if (s.nans || (s.plus_infinities && s.minus_infinities)) return NAN;
    if (s.plus_infinities || s.minus_infinities) return s.plus_infinities ? INFINITY : -INFINITY;
    const double sign = take_sign(&s);
    int top = EXACT_LIMBS * LIMB_BITS - 1;
    while (top >= 0 && !bits_at(&s, top, 1)) top--;
    if (top < 0) return 0;
    const int drop = top >= MANTISSA ? top - MANTISSA + 1 : 0; /* bits that do not fit */
    uint64_t mantissa = bits_at(&s, drop, MANTISSA);
    const int half = drop && bits_at(&s, drop - 1, 1);
    mantissa += half && (mantissa & 1 || any_below(&s, drop - 1));
    return sign * ldexp((double)mantissa, drop + LOWEST);
}
