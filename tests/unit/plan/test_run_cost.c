/* Compares durations, costs and goodput with values calculated by hand, and intervals with all other intervals. */
#include "unit/cmocka_all.h"

#include <math.h>

#include "config/args.h"
#include "plan/run_cost.h"

static bool is_near(double a, double b, double tolerance) { return fabs(a - b) <= tolerance * fabs(b); }

TEST(amounts_of_tokens) {
    static const struct {
        const char *text;
        double n;
    } ROWS[] = {
        {"15T", 15e12}, {"1.5B", 1.5e9}, {"10M", 1e7},    {"7", 7},      {"1e9", 1e9},
        {"0", NAN},     {"0T", NAN},     {"-1B", NAN},    {"nan", NAN},  {"inf", NAN},
        {"T", NAN},     {"", NAN},       {"1TT", NAN},    {"1 T", NAN},  {"1t", NAN},
        {"1K", NAN},    {"1e400", NAN},  {"1e300T", NAN}, {"0x10", NAN},
    };
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        const double n = tokens_parse(ROWS[i].text);
        if (isnan(ROWS[i].n) ? !isnan(n) : n != ROWS[i].n) fail_msg("%s: %g", ROWS[i].text, n);
    }
}

/* 1e6 tokens/s on 10 ranks; steps of 2 s. With a failure of a GPU per 10 hours, the run has one per hour. The values have at
 * least seven digits. */
TEST(days_and_cost) {
    static const struct {
        RunTerms terms;
        double goodput, days, cost, per_million;
    } ROWS[] = {
        {{86.4e9, NAN, NAN, NAN, NAN, I64_UNSET}, 1, 1, NAN, NAN},
        {{NAN, 3.6, NAN, NAN, NAN, I64_UNSET}, 1, NAN, NAN, 0.01},
        {{172.8e9, 5, NAN, NAN, NAN, I64_UNSET}, 1, 2, 2400, 1 / 72.},
        /* (1/6) / (exp(1/12) (exp(11/60) - 1)) = 0.1666667 / (1.0869040 * 0.2012147) */
        {{86.4e9, 1, 10, 60, 300, 300}, 0.7620750, 1.3122067, 314.92962, 1 / 360. / 0.7620750},
        /* failures are so rare that only checkpoints cost time */
        {{86.4e9, NAN, 1e12, 50, 1, 75}, 0.75, 4 / 3., NAN, NAN},
    };
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        const RunCost c = run_cost(&ROWS[i].terms, 10, 2e9, 1e6);
        const double got[] = {c.goodput, c.days, c.cost, c.per_million_tokens},
                     want[] = {ROWS[i].goodput, ROWS[i].days, ROWS[i].cost, ROWS[i].per_million};
        for (int k = 0; k < 4; k++)
            if (isnan(want[k]) ? !isnan(got[k]) : !is_near(got[k], want[k], 1e-6))
                fail_msg("row %zu, value %d: %.9g, not %.9g", i, k, got[k], want[k]);
        if (i64_is_set(ROWS[i].terms.save_interval)) assert_true(c.interval == ROWS[i].terms.save_interval);
    }
}

/* No other number of steps has a higher goodput. If a checkpoint takes d < M / 1000, the interval differs from Young's by less
 * than sqrt(2 d / M) of it: Daly's next terms are 1/3 and 1 of sqrt(d / 2 M). */
TEST(the_best_interval) {
    static const double ROWS[][3] = {
        {1, 10, 1e4}, {30, 3000, 1e5}, {600, 60, 1e3}, {5000, 1, 1e3}, {0.01, 1, 1e7}};
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        RunTerms t = {NAN, NAN, ROWS[i][2], ROWS[i][0], 100, I64_UNSET};
        const RunCost c = run_cost(&t, 1000, ROWS[i][1] * 1e9, 1);
        const double young = sqrt(2 * ROWS[i][0] * ROWS[i][2] * 3.6) / ROWS[i][1];
        assert_true(c.interval == c.best_interval && c.goodput == c.best_goodput && c.interval >= 1);
        assert_true(c.failure_hours == ROWS[i][2] / 1000);
        if (ROWS[i][0] < 1e-3 * 3.6 * ROWS[i][2])
            assert_true(fabs((double)c.interval - young) <= sqrt(2e-3) * young + 1);
        for (t.save_interval = 1; t.save_interval < 3 * c.interval + 10; t.save_interval++)
            assert_true(run_cost(&t, 1000, ROWS[i][1] * 1e9, 1).goodput <= c.goodput);
    }
}
