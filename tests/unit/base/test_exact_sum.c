#include <math.h>
#include <string.h>

#include "unit/cmocka_all.h"

#include "base/exact_sum.h"

enum { MOST = 64 };

typedef struct Case {
    double sum, x[MOST];
} Case;
static const Case CASES[] = {
#define SUM(sum, ...) {sum, {__VA_ARGS__}},
#include "unit/base/exact_sum_vectors.def"
#undef SUM
};
enum { N_CASES = sizeof CASES / sizeof *CASES };

static void same(double x, double want) {
    if (memcmp(&x, &want, sizeof x)) fail_msg("%a, expected %a", x, want);
}

TEST(agrees_with_fractions) {
    for (int i = 0; i < N_CASES; i++) {
        ExactSum s = {0};
        exact_add(&s, CASES[i].x, MOST); /* the remaining numbers are zeros */
        same(exact_value(s), CASES[i].sum);
    }
}

/* Adds the numbers in reverse order, one by one, and on three ranks with sums that are added word by word. */
TEST(order_and_grouping_do_not_matter) {
    for (int i = 0; i < N_CASES; i++) {
        ExactSum back = {0}, rank[3] = {{{0}, 0, 0, 0}}, all = {0};
        for (int k = MOST; k--;) exact_add(&back, &CASES[i].x[k], 1);
        for (int k = 0; k < MOST; k++) exact_add(&rank[k % 3], &CASES[i].x[k], 1);
        for (int r = 0; r < 3; r++)
            for (int w = 0; w < EXACT_WORDS; w++) ((int64_t *)&all)[w] += ((int64_t *)&rank[r])[w];
        same(exact_value(back), CASES[i].sum);
        same(exact_value(all), CASES[i].sum);
    }
}

/* Adds 2^20 numbers of both signs. All but one cancel. */
TEST(carries_do_not_overflow) {
    static double x[1 << 20];
    const double big = 0x1.fffffffffffffp+1023, odd = 0x1.fffffffffffffp-31;
    ExactSum s = {0};
    for (int i = 0; i < 1 << 20; i++) x[i] = i % 2 ? odd : big / 4;
    exact_add(&s, x, 1 << 20);
    same(exact_value(s), INFINITY); /* the sum, 2^19 * big / 4, exceeds the range of double */
    for (int i = 0; i < 1 << 20; i++) x[i] = i % 2 ? 0 : -big / 4;
    exact_add(&s, x, 1 << 20);
    same(exact_value(s), odd * (1 << 19));
}

TEST(infinities_and_nans_are_what_ieee_makes_of_them) {
    const double plus[] = {1, INFINITY}, minus[] = {-INFINITY, 1e308}, nan[] = {2, NAN};
    ExactSum s = {0}, t = {0}, u = {0};
    exact_add(&s, plus, 2), exact_add(&t, minus, 2), exact_add(&u, nan, 2);
    same(exact_value(s), INFINITY);
    same(exact_value(t), -INFINITY);
    assert_true(isnan(exact_value(u)));
    exact_add(&s, minus, 2);
    assert_true(isnan(exact_value(s)));
    same(exact_value((ExactSum){{0}, 0, 0, 0}), 0);
}
