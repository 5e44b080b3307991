/* Compares the float types with a definition of rounding in double: x = m 2^q, where q is the exponent of the
 * last place, and m is rounded to nearest, ties to even. */
#include "unit/cmocka_all.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/philox.h"
#include "tensor/dtype.h"

typedef struct Format {
    int digits, min_exponent; /* significant bits; exponent of the smallest normal number */
    double largest;
} Format;
static const Format BF16_FORMAT = {8, -126, 0x1.fep127}, F16_FORMAT = {11, -14, 65504};

static double rounded(double x, Format f) {
    if (x == 0 || isinf(x) || isnan(x)) return x;
    int q = (ilogb(x) > f.min_exponent ? ilogb(x) : f.min_exponent) - (f.digits - 1);
    double y = ldexp(nearbyint(ldexp(x, -q)), q);
    return fabs(y) > f.largest ? copysign(INFINITY, x) : y;
}

static bool same_value(double a, double b) {
    return (isnan(a) && isnan(b)) || (a == b && signbit(a) == signbit(b));
}

/* The value of 16 bits by the definition of the format. */
static double decoded(uint16_t h, int exponent_bits, int fraction_bits) {
    const int bias = (1 << (exponent_bits - 1)) - 1, e = h >> fraction_bits & ((1 << exponent_bits) - 1);
    const int fraction = h & ((1 << fraction_bits) - 1);
    const double sign = h >> 15 ? -1 : 1;
    if (e == (1 << exponent_bits) - 1) return fraction ? NAN : sign * INFINITY;
    return sign * ldexp(fraction + (e ? 1 << fraction_bits : 0), (e ? e : 1) - bias - fraction_bits);
}

TEST(every_pattern_decodes_and_survives) {
    for (uint32_t h = 0; h < 65536; h++) {
        const uint16_t bits = (uint16_t)h;
        assert_true(same_value((double)bf16_to_float(bits), decoded(bits, 8, 7)));
        assert_true(same_value((double)f16_to_float(bits), decoded(bits, 5, 10)));
        if (isnan(bf16_to_float(bits)))
            assert_true(isnan(bf16_to_float(bf16_from_float(bf16_to_float(bits)))));
        else
            assert_int_equal(bf16_from_float(bf16_to_float(bits)), bits);
        if (isnan(f16_to_float(bits)))
            assert_true(isnan(f16_to_float(f16_from_float(f16_to_float(bits)))));
        else
            assert_int_equal(f16_from_float(f16_to_float(bits)), bits);
    }
}

static void check_rounding(float x) {
    if (!same_value((double)bf16_to_float(bf16_from_float(x)), rounded((double)x, BF16_FORMAT)))
        fail_msg("BF16 of %a is %a", (double)x, (double)bf16_to_float(bf16_from_float(x)));
    if (!same_value((double)f16_to_float(f16_from_float(x)), rounded((double)x, F16_FORMAT)))
        fail_msg("F16 of %a is %a", (double)x, (double)f16_to_float(f16_from_float(x)));
}

static void around(float x) {
    check_rounding(x), check_rounding(nextafterf(x, INFINITY)), check_rounding(nextafterf(x, -INFINITY));
}

TEST(rounding_is_to_nearest_even) {
    for (uint32_t h = 0; h < 65535; h++) { /* every value, every midpoint, and their neighbours */
        const float a = bf16_to_float((uint16_t)h), b = bf16_to_float((uint16_t)(h + 1));
        const float c = f16_to_float((uint16_t)h), d = f16_to_float((uint16_t)(h + 1));
        if (isfinite(a)) around(a);
        if (isfinite(a) && isfinite(b)) around((float)(((double)a + (double)b) / 2));
        if (isfinite(c)) around(c);
        if (isfinite(c) && isfinite(d)) around((float)(((double)c + (double)d) / 2));
    }
    for (uint64_t i = 0; i < 1000000; i++) {
        const uint32_t bits = philox_u32(1, 1, i);
        float x;
        memcpy(&x, &bits, sizeof x);
        check_rounding(x);
    }
    around(65504), around(65520), around(0x1.fffffep127f), around(INFINITY);
}

TEST(conversion_goes_between_all_types) {
    enum { N = 1000 }; /* more than one chunk */
    double x[N], back[N];
    for (int i = 0; i < N; i++)
        x[i] = (double)bf16_to_float(bf16_from_float((float)(i % 256 - 128))) / 4; /* exact in all types */
    for (DType from = F64; from <= F16; from++)
        for (DType to = F64; to <= F16; to++) {
            unsigned char a[N * 8], b[N * 8];
            dtype_convert(a, from, x, F64, N);
            dtype_convert(b, to, a, from, N);
            dtype_convert(back, F64, b, to, N);
            assert_memory_equal(back, x, sizeof x);
        }
}

TEST(names_are_parsed) {
    for (DType t = F64; t < DTYPES; t++) {
        DType parsed;
        assert_true(dtype_parse(dtype_name(t), &parsed));
        assert_int_equal(parsed, t);
    }
    DType none;
    assert_false(dtype_parse("F8", &none));
    assert_true(dtype_roundoff(BF16) == ldexp(1, -8) && dtype_roundoff(F16) == ldexp(1, -11));
}
