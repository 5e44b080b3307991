/* Rounds an ExactSum to a double. The host and the GPU share this code. */
#pragma once

#include "base/exact_sum.h"
#include "base/host_device.h"

enum { EXACT_LIMB_BITS = 32, EXACT_MANTISSA = 53 };

/* Propagates carries, so that |limb| < 2^32 for all limbs except the last. */
HOST_DEVICE static inline void exact_normalise(ExactSum *s) {
    int64_t carry = 0;
    for (int i = 0; i < EXACT_LIMBS - 1; i++) {
        const int64_t x = s->limb[i] + carry;
        carry = x / (INT64_C(1) << EXACT_LIMB_BITS);
        s->limb[i] = x % (INT64_C(1) << EXACT_LIMB_BITS);
    }
    s->limb[EXACT_LIMBS - 1] += carry;
}

/* Returns the sign of a normal sum, and replaces the sum with its magnitude. All limbs except the last are then in
 * [0, 2^32). */
HOST_DEVICE static inline double exact_take_sign(ExactSum *s) {
    int top = EXACT_LIMBS - 1;
    while (top >= 0 && !s->limb[top]) top--;
    const double sign = top >= 0 && s->limb[top] < 0 ? -1 : 1;
    int64_t borrow = 0;
    for (int i = 0; i <= top; i++) {
        const int64_t x = (sign < 0 ? -s->limb[i] : s->limb[i]) - borrow;
        borrow = x < 0 && i < top;
        s->limb[i] = borrow ? x + (INT64_C(1) << EXACT_LIMB_BITS) : x;
    }
    return sign;
}

/* Returns the index of a magnitude's highest set bit, or -1 if the magnitude is 0. */
HOST_DEVICE static inline int exact_top_bit(const ExactSum *s) {
    int i = EXACT_LIMBS - 1, bit = 0;
    while (i >= 0 && !s->limb[i]) i--;
    if (i < 0) return -1;
    for (uint64_t x = (uint64_t)s->limb[i] >> 1; x; x >>= 1) bit++;
    return i * EXACT_LIMB_BITS + bit;
}

/* Returns a magnitude's bits [from, from + n), for n < 64. */
HOST_DEVICE static inline uint64_t exact_bits(const ExactSum *s, int from, int n) {
    unsigned __int128 x = 0;
    for (int k = 2; k >= 0; k--) {
        const int i = from / EXACT_LIMB_BITS + k;
        x = x << EXACT_LIMB_BITS | (i < EXACT_LIMBS ? (uint64_t)s->limb[i] : 0);
    }
    return (uint64_t)(x >> from % EXACT_LIMB_BITS) & ((UINT64_C(1) << n) - 1);
}

HOST_DEVICE static inline int exact_any_below(const ExactSum *s, int bit) {
    for (int i = 0; i < bit / EXACT_LIMB_BITS; i++)
        if (s->limb[i]) return 1;
    return (s->limb[bit / EXACT_LIMB_BITS] & ((INT64_C(1) << bit % EXACT_LIMB_BITS) - 1)) != 0;
}

/* Returns the bits of the double nearest to the magnitude. If `drop` bits lie below the mantissa, a normal number's
 * exponent field is drop + 1: the field starts as `drop`, and the mantissa's leading bit carries 1 into it. A subnormal
 * number has no leading bit. Rounding up to a power of two carries into the exponent. */
HOST_DEVICE static inline uint64_t exact_nearest(const ExactSum *s) {
    const uint64_t infinite = UINT64_C(0x7ff) << (EXACT_MANTISSA - 1);
    const int top = exact_top_bit(s), drop = top >= EXACT_MANTISSA ? top - EXACT_MANTISSA + 1 : 0;
    if (top < 0) return 0;
    if (drop >= 0x7ff) return infinite;
    uint64_t mantissa = exact_bits(s, drop, EXACT_MANTISSA);
    const int half = drop && exact_bits(s, drop - 1, 1);
    mantissa += half && (mantissa & 1 || exact_any_below(s, drop - 1));
    const uint64_t bits = ((uint64_t)drop << (EXACT_MANTISSA - 1)) + mantissa;
    return bits < infinite ? bits : infinite;
}

/* Returns the double from exact_value as a bit pattern. The sum is invalid afterwards. */
HOST_DEVICE static inline uint64_t exact_round(ExactSum *s) {
    const uint64_t nan = UINT64_C(0x7ff8) << 48, infinite = UINT64_C(0x7ff) << (EXACT_MANTISSA - 1),
                   minus = UINT64_C(1) << 63;
    exact_normalise(s);
    if (s->nans || (s->plus_infinities && s->minus_infinities)) return nan;
    if (s->plus_infinities || s->minus_infinities) return s->plus_infinities ? infinite : infinite | minus;
    const int is_negative = exact_take_sign(s) < 0;
    return exact_nearest(s) | (is_negative ? minus : 0);
}
