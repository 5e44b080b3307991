/* Compares the budgets of stages with values computed by hand. */
#include <math.h>

#include "unit/cmocka_all.h"
#include "validate/budget.h"

static const StageTime STAGES[] = {{0.25, 2}, {0.75, 6}, {0, 5}};
enum {
    N = sizeof STAGES / sizeof *STAGES,
    ROUNDINGS = 10
}; /* a budget needs at most ten operations on doubles */

TEST(minimums_and_shares_of_the_rest) {
    /* 40 s minus 5 for the last stage and 3 of overhead leave 32. Without the minimums, which add up to 8, 24 are
     * shared. */
    assert_true(stage_budget(STAGES, N, 40, 0, 3) == 2 + 0.25 * 24);
    assert_true(stage_budget(STAGES + 1, N - 1, 40, 8, 3) == 40 - 8 - 5 - 3);
    assert_true(stage_budget(STAGES + 2, 1, 40, 39, 3) == 5);
}

/* If every stage uses its budget exactly, the last stage ends when all time except the overhead is used. */
TEST(the_sum_is_all_the_time) {
    for (double all = 30; all <= 600; all *= 2) {
        double gone = 0;
        for (int i = 0; i < N; i++) gone += stage_budget(STAGES + i, N - i, all, gone, 3);
        assert_true(fabs(gone - (all - 3)) <= N * ROUNDINGS * all * 0x1p-53);
    }
}

TEST(a_slow_stage_takes_time_from_the_later_ones) {
    assert_true(stage_budget(STAGES + 1, N - 1, 40, 20, 3) == 40 - 20 - 5 - 3);
    /* If no time is left, a stage gets a hundredth of all time. */
    assert_true(fabs(stage_budget(STAGES + 1, N - 1, 40, 50, 3) - 0.4) <= ROUNDINGS * 40 * 0x1p-53);
}

/* At most 4 of 10 s are reserved for the last stage, and three quarters of the remaining 6 s are less than the
 * minimums, which add up to 8 s. */
TEST(little_time_shortens_the_minimums) {
    const double part = 0.75 * 6 / 8;
    assert_true(stage_budget(STAGES, N, 10, 0, 3) == part * 2 + 0.25 * (6 - part * 8));
    assert_true(stage_budget(STAGES + 2, 1, 10, 0, 3) == 5);
}
