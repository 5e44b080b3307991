/* Tests the verdicts of the speed gate, and their error rates by simulation. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/philox.h"
#include "bench/gate/gate.h"
#include "unit/err.h"

TEST(verdicts_follow_the_interval) {
    assert_int_equal(gate_judge((Interval){0.9, 1, 1.03}, 0.03), GATE_PASS);
    assert_int_equal(gate_judge((Interval){0.9, 1, 1.031}, 0.03), GATE_INCONCLUSIVE);
    assert_int_equal(gate_judge((Interval){1.03, 1.1, 1.2}, 0.03), GATE_INCONCLUSIVE);
    assert_int_equal(gate_judge((Interval){1.031, 1.1, 1.2}, 0.03), GATE_REGRESS);
    GateRow rows[] = {{.verdict = GATE_PASS}, {.verdict = GATE_PASS}, {.verdict = GATE_PASS}};
    const Gate g = {.rows = rows, .n = 3};
    assert_int_equal(gate_verdict(&g), GATE_PASS);
    rows[0].verdict = GATE_INCONCLUSIVE;
    assert_int_equal(gate_verdict(&g), GATE_INCONCLUSIVE);
    rows[2].verdict = GATE_REGRESS;
    assert_int_equal(gate_verdict(&g), GATE_REGRESS);
}

/* ---- error rates ---- */

static double uniform(uint64_t stream, uint64_t i) { return (philox_u32(7, stream, i) + 0.5) * 0x1p-32; }

/* Draws a time from a distribution with this median and a long tail of slow times. */
static double time_of(double median, uint64_t stream, uint64_t i) {
    const double u = uniform(stream, i);
    return median * (u < 0.5 ? 1 - 0.02 * (0.5 - u) : 1 + 0.02 * (u - 0.5) / (1.02 - u));
}

typedef struct Rates {
    double of[GATE_INCONCLUSIVE + 1];
} Rates;

enum { TRIALS = 20000, PAIRS = 12 };
static const double ALLOW = 0.03;

static Rates rates_of_pairs(double ratio) {
    Rates r = {{0}};
    for (uint64_t t = 0; t < TRIALS; t++) {
        double x[PAIRS];
        Interval of;
        for (uint64_t i = 0; i < PAIRS; i++) x[i] = time_of(ratio, t, i);
        interval_of_median(x, PAIRS, INTERVAL_ERROR, &of);
        r.of[gate_judge(of, ALLOW)] += 1.0 / TRIALS;
    }
    return r;
}

/* If the true ratio equals the limit, each wrong verdict has the probability P(Bin(12, 1/2) <= 2) = 79 /
 * 4096. */
TEST(pairs_err_as_stated) {
    const double wanted = 79.0 / 4096, far = 5 * sqrt(wanted / TRIALS);
    const Rates at = rates_of_pairs(1.03), above = rates_of_pairs(1.08), below = rates_of_pairs(0.98);
    assert_true(fabs(at.of[GATE_PASS] - wanted) < far && fabs(at.of[GATE_REGRESS] - wanted) < far);
    assert_true(above.of[GATE_PASS] == 0 && above.of[GATE_REGRESS] > 0.95);
    assert_true(below.of[GATE_REGRESS] == 0 && below.of[GATE_PASS] > 0.7);
}

/* Makes a result of `bench ops` in which the samples of each row have a given median. */
static json_t *result_of(int rows, const double *median, int samples, uint64_t stream) {
    json_t *list = json_array();
    for (int k = 0; k < rows; k++) {
        char name[8];
        json_t *times = json_array();
        snprintf(name, sizeof name, "op%d", k);
        for (int i = 0; i < samples; i++)
            json_array_append_new(times,
                                  json_real(time_of(median[k], stream * 100 + (uint64_t)k, (uint64_t)i)));
        json_array_append_new(list, json_pack("{s:s, s:s, s:f, s:o}", "name", name, "type", "fp32", "us",
                                              median[k], "samples_us", times));
    }
    return json_pack("{s:b, s:s, s:o}", "complete", 1, "device", "d", "rows", list);
}

static GateVerdict against_baseline(int rows, const double *median, int samples, uint64_t stream) {
    static const double ONE[] = {1, 1, 1, 1};
    const GateOptions o = {.baseline = "file", .allow = ALLOW};
    Gate g = {.options = &o, .bench = "ops"};
    Str notes = {0};
    assert_ok(result_take("file", result_of(rows, ONE, samples, 2 * stream), &g.theirs));
    const Err e = gate_judge_baseline(&g, result_of(rows, median, samples, 2 * stream + 1), &notes);
    if (e.code) fail_msg("%s", e.msg);
    assert_int_equal(g.n, rows);
    const GateVerdict v = gate_verdict(&g);
    gate_free(&g);
    return v;
}

static Rates rates_of_baselines(int rows, const double *median) {
    enum { FEWER = 1000, SAMPLES = 20 };
    Rates r = {{0}};
    for (uint64_t t = 0; t < FEWER; t++) r.of[against_baseline(rows, median, SAMPLES, t)] += 1.0 / FEWER;
    return r;
}

TEST(baselines_err_less_than_stated) {
    static const double LIMIT[] = {1.03, 1.03, 1.03, 1.03}, SLOW[] = {1, 1, 1, 1.3},
                        FAST[] = {0.9, 0.9, 0.9, 0.9};
    for (int rows = 1; rows <= 4; rows += 3) {
        const Rates at = rates_of_baselines(rows, LIMIT);
        assert_true(at.of[GATE_PASS] <= INTERVAL_ERROR / 2 && at.of[GATE_REGRESS] <= INTERVAL_ERROR / 2);
    }
    assert_true(rates_of_baselines(4, SLOW).of[GATE_REGRESS] > 0.95);
    assert_true(rates_of_baselines(4, FAST).of[GATE_PASS] > 0.95);
    assert_int_equal(against_baseline(1, FAST, 6, 0), GATE_INCONCLUSIVE); /* an interval needs 7 samples */
}

TEST(percentages_are_strict) {
    double x;
    assert_true(gate_parse_percentage("3%", &x) && x == 0.03);
    assert_true(gate_parse_percentage("0%", &x) && x == 0);
    static const char *const BAD[] = {"", "%", "3", "0.03", "-1%", "nan%", "3%%", "3 %", "1001%"};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) assert_false(gate_parse_percentage(BAD[i], &x));
}

TEST(files_may_hold_anything) {
    static const char *const BAD[] = {
        "",
        "[1]",
        "{}",
        "{\"step_ms\": 3}",
        "{\"step_ms\": {\"median\": 0}}",
        "{\"step_ms\": {\"median\": \"1\"}}",
        "{\"step_ms\": {\"median\": 1}, \"samples_ms\": [1, null]}",
        "{\"complete\": true, \"rows\": []}",
        "{\"complete\": true, \"rows\": [5]}",
        "{\"complete\": false, \"rows\": [{\"name\": \"a\", \"type\": \"b\", \"us\": 1}]}"};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        Result r;
        assert_int_equal(result_parse("file", BAD[i], strlen(BAD[i]), &r).code, ERR_USER);
        result_free(&r);
    }
    Result r;
    const char *good = "{\"step_ms\": {\"median\": 2.5}}";
    assert_ok(result_parse("file", good, strlen(good), &r));
    assert_true(r.n == 1 && r.rows->time == 2.5 && !strcmp(result_fact(&r, "commit"), "unknown"));
    result_free(&r);
}
