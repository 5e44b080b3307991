/* Compares FP8 numbers with the definitions of their formats. */
#include "unit/cmocka_all.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "tensor/fp8.h"

/* The value of a code, computed from its sign, exponent and mantissa. */
static double value_of(Fp8Type t, unsigned code) {
    const int bits = t == E4M3 ? 3 : 2, bias = t == E4M3 ? 7 : 15;
    const int exponent = (int)(code & 127) >> bits, mantissa = (int)code & ((1 << bits) - 1);
    const double sign = code & 128 ? -1 : 1;
    if (t == E4M3 && (code & 127) == 127) return NAN;
    if (t == E5M2 && exponent == 31) return mantissa ? NAN : sign * INFINITY;
    return sign * ldexp(mantissa + (exponent ? 1 << bits : 0), (exponent ? exponent : 1) - bias - bits);
}

/* The code of the nearest finite value with the sign of x. Ties go to the value whose last bit is 0. */
static unsigned nearest(Fp8Type t, double x) {
    const double largest = t == E4M3 ? 448 : 57344;
    unsigned best = signbit(x) ? 128 : 0;
    x = fmax(-largest, fmin(x, largest));
    for (unsigned code = best; code < (best | 127) + 1; code++) {
        const double d = fabs(value_of(t, code) - x), least = fabs(value_of(t, best) - x);
        if (isfinite(d) && (d < least || (d == least && !(code & 1)))) best = code;
    }
    return best;
}

TEST(every_code_has_its_value) {
    for (Fp8Type t = E4M3; t <= E5M2; t++)
        for (unsigned code = 0; code < 256; code++) {
            const float want = (float)value_of(t, code), got = fp8_to_float(t, (uint8_t)code);
            if (isnan(want) ? !isnan(got) : memcmp(&want, &got, sizeof got))
                fail_msg("type %d, FP8 value %02x is %g, not %g", t, code, (double)got, (double)want);
        }
}

static void expect_nearest(Fp8Type t, float x) {
    const unsigned got = fp8_from_float(t, x), want = nearest(t, (double)x);
    if (got != want) fail_msg("type %d, %a becomes the FP8 value %02x, not %02x", t, (double)x, got, want);
}

/* Tests all FP8 values, the midpoints between them, the neighbours of midpoints, and numbers that are too
 * large or too small. */
TEST(numbers_get_the_nearest_value) {
    for (Fp8Type t = E4M3; t <= E5M2; t++)
        for (float sign = -1; sign <= 1; sign += 2) {
            const float far[] = {INFINITY, FLT_MAX, 1.01F * fp8_max(t), 1e-30F, 1e-45F};
            for (unsigned i = 0; i < sizeof far / sizeof *far; i++) expect_nearest(t, sign * far[i]);
            for (unsigned code = 0; isfinite(value_of(t, code)); code++) {
                const float middle = (float)((value_of(t, code) + value_of(t, code + 1)) / 2);
                expect_nearest(t, sign * (float)value_of(t, code));
                if (!isfinite(middle)) continue;
                expect_nearest(t, sign * middle);
                expect_nearest(t, sign * nextafterf(middle, 0));
                expect_nearest(t, sign * nextafterf(middle, INFINITY));
            }
        }
}

TEST(what_is_no_number_stays_none) {
    for (Fp8Type t = E4M3; t <= E5M2; t++) {
        assert_int_equal(fp8_from_float(t, NAN), 0x7f);
        assert_int_equal(fp8_from_float(t, -NAN), 0x7f);
        assert_true(isnan(fp8_to_float(t, 0x7f)));
    }
    assert_true(fp8_max(E4M3) == 448 && fp8_max(E5M2) == 57344);
    assert_true(fp8_roundoff(E4M3) == 0x1p-4 && fp8_roundoff(E5M2) == 0x1p-3);
}
