/* Compares vector_exp, vector_sigmoid, vector_softplus and vector_erf with libm in long double. This file is
 * compiled for float, and by test_vector_math_f64.c for double. */
#include "unit/cmocka_all.h"

#include "base/philox.h"
#include "kernels/cpu/vector_math.h"

enum { SAMPLES = 1 << 20 };

static const double LARGEST = REAL_TYPE == F64 ? 709.78 : 88.72,
                    SMALLEST = REAL_TYPE == F64 ? -708.39 : -87.33;

/* |y - want| in units in the last place of `want`. */
static double ulps(real y, long double want) {
    const real near = (real)want;
    const long double ulp =
        (long double)REAL_MATH(nextafter)(REAL_MATH(fabs)(near), INFINITY) - REAL_MATH(fabs)(near);
    return (double)(fabsl((long double)y - want) / ulp);
}

TEST(exp_is_within_two_ulp) {
    double worst = 0;
    for (int i = 0; i < SAMPLES; i++) {
        const double u = philox_uniform(1, 2, (uint64_t)i), whole = SMALLEST + (LARGEST - SMALLEST) * u;
        const real x = (real)(i % 2 ? whole : 4 * u - 2);
        worst = fmax(worst, ulps(vector_exp(x), expl((long double)x)));
    }
    print_message("    largest error %.3f ulp\n", worst);
    assert_true(worst <= 2);
}

TEST(exp_has_the_right_limits) {
    assert_true(vector_exp(0) == 1);
    assert_true(vector_exp(-INFINITY) == 0);
    assert_true(vector_exp((real)(1.1 * SMALLEST)) == 0);
    assert_true(isinf(vector_exp(INFINITY)) && isinf(vector_exp((real)(1.1 * LARGEST))));
    assert_true(isnan(vector_exp(NAN)));
}

/* The bound: exp has an error of 2 ulp, the addition and the division 1/2 ulp each, and a change of the
 * exponent between them may add 1 ulp. */
TEST(sigmoid_is_within_four_ulp) {
    double worst = 0;
    for (int i = 0; i < SAMPLES; i++) {
        const real x = (real)(80 * philox_uniform(3, 4, (uint64_t)i) - 40);
        worst = fmax(worst, ulps(vector_sigmoid(x), 1 / (1 + expl(-(long double)x))));
    }
    print_message("    largest error %.3f ulp\n", worst);
    assert_true(worst <= 4);
    assert_true(vector_sigmoid(-INFINITY) == 0 && vector_sigmoid(INFINITY) == 1 &&
                isnan(vector_sigmoid(NAN)));
}

/* The bound: e has the error of exp, 2 ulp; z, after an addition and a division, 3 ulp; the series and two
 * products, 4 ulp. The sum with max(x, 0) can only reduce the relative error. */
TEST(softplus_is_within_four_ulp) {
    double worst = 0;
    for (int i = 0; i < SAMPLES; i++) {
        const real x = (real)(160 * philox_uniform(7, 8, (uint64_t)i) - 80);
        const long double e = expl(-fabsl((long double)x)), want = fmaxl(x, 0) + log1pl(e);
        worst = fmax(worst, ulps(vector_softplus(x), want));
    }
    print_message("    largest error %.3f ulp\n", worst);
    assert_true(worst <= 4);
    assert_true(vector_softplus(-INFINITY) == 0 && isinf(vector_softplus(INFINITY)) &&
                isnan(vector_softplus(NAN)));
}

/* The bound: P and Q have an error of 1 ulp each, plus the roundings of a product, or of exp and a difference. */
TEST(erf_is_within_three_ulp) {
    double worst = 0;
    for (int i = 0; i < SAMPLES; i++) {
        const double u = 2 * philox_uniform(5, 6, (uint64_t)i) - 1;
        const real x = (real)(i % 3 == 0 ? u : i % 3 == 1 ? 6 * u : exp2(40 * u - 40));
        worst = fmax(worst, ulps(vector_erf(x), erfl((long double)x)));
    }
    print_message("    largest error %.3f ulp\n", worst);
    assert_true(worst <= 3);
    assert_true(vector_erf(0) == 0 && vector_erf(1) == -vector_erf(-1));
    assert_true(vector_erf(INFINITY) == 1 && vector_erf(-INFINITY) == -1 && isnan(vector_erf(NAN)));
}
