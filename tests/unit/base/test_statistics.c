/* Tests summaries of samples, and compares the ranks of an interval with binomial tables. */
#include <math.h>

#include "base/statistics.h"
#include "unit/cmocka_all.h"

TEST(summaries) {
    const double odd[] = {3, 1, 2}, even[] = {4, 1, 3, 2}, sides[] = {3, -4};
    assert_true(median_of(odd, 3) == 2 && isnan(median_of(odd, 0)));
    const Range r = range_of(even, 4);
    assert_true(r.median == 2.5 && r.min == 1 && r.max == 4);
    assert_true(upper_quartile_of(even, 4) == 4 && upper_quartile_of(odd, 3) == 3);
    assert_true(mean_of(even, 4) == 2.5 && norm_of(sides, 2) == 5 && rms_of(sides, 0) == 0);
    assert_true(fabs(rms_of(sides, 2) - sqrt(12.5)) < 1e-15);
}

/* Checks in exact arithmetic that the sum over j < k of C(n, j) is at most error / 2 * 2^n. */
TEST(ranks_are_those_of_the_binomial) {
    static const struct {
        int64_t n, rank_5, rank_1;
    } TABLE[] = {{0, 0, 0},  {5, 0, 0},  {6, 1, 0},   {8, 1, 1},     {9, 2, 1},        {12, 3, 2},
                 {15, 4, 3}, {20, 6, 4}, {30, 10, 8}, {100, 40, 37}, {1000, 469, 459}, {5000, 2431, 2409}};
    for (size_t i = 0; i < sizeof TABLE / sizeof *TABLE; i++) {
        assert_int_equal(interval_rank(TABLE[i].n, 0.05), TABLE[i].rank_5);
        assert_int_equal(interval_rank(TABLE[i].n, 0.01), TABLE[i].rank_1);
    }
    for (double error = 0.1; error > 1e-6; error /= 3) {
        const int64_t n = interval_least(error);
        assert_true(interval_rank(n, error) == 1 && interval_rank(n - 1, error) == 0);
    }
}

TEST(interval_has_the_ranks) {
    const double x[] = {7, 1, 12, 3, 9, 2, 11, 4, 8, 5, 10, 6};
    Interval of;
    assert_true(interval_of_median(x, 12, 0.05, &of));
    assert_true(of.low == 3 && of.median == 6.5 && of.high == 10);
    assert_false(interval_of_median(x, 5, 0.05, &of));
    assert_true(of.low == 0 && of.median == 7 && isinf(of.high));
}

TEST(a_ratio_holds_both_intervals) {
    const Interval a = {2, 3, 4}, b = {1, 2, 8}, unknown = {0, 6, INFINITY};
    Interval r = interval_ratio(a, b);
    assert_true(r.low == 0.25 && r.median == 1.5 && r.high == 4);
    r = interval_ratio(a, unknown);
    assert_true(r.low == 0 && r.median == 0.5 && isinf(r.high));
}
