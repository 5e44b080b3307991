/* Tests that logs are compared by step, that the last record of a step counts, and that the first difference
 * is named. */
#include <math.h>
#include <string.h>

#include "base/file.h"
#include "parity/log_diff.h"
#include "unit/err.h"
#include "unit/temp_dir.h"

static const DiffOptions EXACT = {.bound = NAN}, COMMON = {.bound = NAN, .common = true},
                         LOOSE = {.bound = 1e-2};

static Err diff_texts(const char *a, const char *b, const DiffOptions *o, Diff *d, Str *out) {
    char dir[64], path[2][80];
    temp_dir(dir);
    for (int i = 0; i < 2; i++) {
        const char *text = i ? b : a;
        snprintf(path[i], sizeof path[i], "%s/%c", dir, "ab"[i]);
        assert_ok(file_write_atomic(path[i], text, strlen(text)));
    }
    str_clear(out);
    Err e = log_diff(path[0], path[1], o, d, out);
    file_remove_tree(dir);
    return e;
}

static void expect(const char *a, const char *b, const DiffOptions *o, bool equal, bool within,
                   const char *text) {
    Str out = {0};
    Diff d;
    Err e = diff_texts(a, b, o, &d, &out);
    if (e.code || d.is_equal != equal || d.is_within != within || !strstr(out.s, text))
        fail_msg("%s, equal %d, within %d, no '%s' in\n%s", e.msg, d.is_equal, d.is_within, text,
                 out.s ? out.s : "");
    str_free(&out);
}

static void expect_error(const char *a, const char *b, const DiffOptions *o, const char *text) {
    Str out = {0};
    Diff d;
    Err e = diff_texts(a, b, o, &d, &out);
    assert_int_equal(e.code, ERR_USER);
    if (!strstr(e.msg, text)) fail_msg("'%s' does not say '%s'", e.msg, text);
    str_free(&out);
}

#define STEP(n, loss, norm, seconds)                                                                         \
    "{\"iteration\": " #n ", \"lm_loss\": " #loss ", \"grad_norm\": " #norm ", \"seconds\": " #seconds       \
    ", \"skipped\": false}\n"

#define RESTART(n) "{\"kind\": \"run\", \"iteration\": " #n "}\n"

TEST(values_are_compared) {
    const char *a = STEP(1, 5.5, 1.0, 0.1) STEP(2, 5.25, 2.0, 0.1) STEP(3, 5.0, 4.0, 0.1);
    expect(a, STEP(1, 5.5, 1.0, 9) STEP(2, 5.25, 2.0, 9) STEP(3, 5.0, 4.0, 9), &EXACT, true, true,
           "verdict: equal\n");
    const char *b = STEP(1, 5.5, 1.0, 0.1) STEP(2, 5.25, 2.001, 0.1) STEP(3, 5.5, 4.0, 0.1);
    expect(a, b, &EXACT, false, false, "verdict: differ, first at step 2, grad_norm 2 against 2.001\n");
    expect(a, b, &LOOSE, false, false, "verdict: differ, first at step 3, lm_loss 5 against 5.5\n");
    expect(a, b, &LOOSE, false, false,
           "lm_loss                          3  step 3            step 3            0.0909 at step 3\n");
    expect(a, b, &LOOSE, false, false,
           "grad_norm                        3  step 2            -                 0.0005 at step 2\n");
    expect(a, b, &(DiffOptions){.bound = 0.1}, false, true,
           "verdict: within 0.1, the largest relative difference is 0.0909: lm_loss of step 3\n");
    expect(STEP(1, 5.883512345678901, 1, 1), STEP(1, 5.883512345678902, 1, 1), &EXACT, false, false,
           "lm_loss 5.883512345678901 against 5.883512345678902");
    expect("{\"iteration\": 1, \"skipped\": false}", "{\"iteration\": 1, \"skipped\": true}", &EXACT, false,
           false, "skipped 0 against 1");
}

TEST(null_is_no_number) {
    expect(STEP(1, 5, null, 1), STEP(1, 5, null, 1), &EXACT, true, true, "verdict: equal");
    static const char LOST[] = "first at step 1, lm_loss is finite in neither log";
    expect(STEP(1, null, 1, 1), STEP(1, null, 1, 1), &EXACT, false, false, LOST);
    expect(STEP(1, null, 1, 1), STEP(1, null, 1, 1), &LOOSE, false, false, LOST);
#define SKIPPED                                                                                              \
    "{\"iteration\": 1, \"lm_loss\": null, \"skipped\": true}\n" /* a step that the loss scaler has skipped */
    expect(SKIPPED, SKIPPED, &EXACT, true, true, "verdict: equal");
    expect(STEP(1, null, 1, 1), STEP(1, 5, 1, 1), &LOOSE, false, false, "lm_loss nan against 5");
}

TEST(the_last_record_of_a_step_counts) {
    const char *straight = STEP(1, 5, 1, 1) STEP(2, 4, 1, 1) STEP(3, 3, 1, 1);
    expect(straight,
           STEP(1, 5, 1, 1) STEP(2, 4.5, 1, 1) STEP(3, 9, 1, 1) STEP(2, 4, 1, 1) "\n" STEP(3, 3, 1, 1),
           &EXACT, true, true, "b: 3 steps, 1 to 3\n");
    expect(straight, straight, &EXACT, true, true, "a: 3 steps, 1 to 3\n");
    expect(straight, STEP(1, 5, 1, 1) STEP(2, 4, 1, 1) STEP(3, 3, 1, 1) STEP(2, 4.5, 1, 1), &EXACT, false,
           false, "step 2, lm_loss 4 against 4.5");
}

TEST(what_only_one_log_has) {
    const char *longer = STEP(1, 5, 1, 1) STEP(2, 4, 1, 1), *shorter = STEP(2, 4, 1, 1);
    expect(longer, shorter, &EXACT, false, false, "verdict: differ, first at step 1, which is only in /");
    expect(longer, shorter, &LOOSE, false, false, "\n1 step is only in /");
    expect(longer, shorter, &COMMON, true, true, "verdict: equal");
    const char *norm = "{\"iteration\": 2, \"lm_loss\": 4, \"params_norm\": 7}\n",
               *none = "{\"iteration\": 2, \"lm_loss\": 4}\n";
    expect(norm, none, &EXACT, false, false, "step 2, params_norm is only in ");
    expect(norm, none, &COMMON, true, true,
           "params_norm                      0  -                                   not in both\n");
    expect_error("{\"iteration\": 2, \"x\": 4}", "{\"iteration\": 2, \"y\": 4}", &COMMON,
                 "no quantity in common");
    expect_error(STEP(1, 5, 1, 1), STEP(2, 5, 1, 1), &COMMON, "no step is in both logs");
}

TEST(evaluations_and_options) {
#define EVALUATION(kind, n, loss) "{\"kind\": \"" kind "\", \"iteration\": " #n ", \"loss\": " #loss "}\n"
#define RUN(seed)                                                                                            \
    "{\"kind\": \"run\", \"iteration\": 1, \"parameters\": " #seed ", \"options\": {\"seed\": " #seed        \
    ", \"lr\": 0.1}}\n"
    const char *a = STEP(1, 5, 1, 1) EVALUATION("validation", 1, 4) EVALUATION("test", 1, 3);
    expect(a,
           STEP(1, 5, 1, 1) EVALUATION("validation", 1, 9) EVALUATION("validation", 1, 4)
               EVALUATION("test", 1, 3),
           &EXACT, true, true, "validation loss                  1  -");
    expect(a, STEP(1, 5, 1, 1) EVALUATION("validation", 1, 4.5) EVALUATION("test", 1, 3), &EXACT, false,
           false, "step 1, validation loss 4 against 4.5");
    expect(a, STEP(1, 5, 1, 1) EVALUATION("validation", 1, 4), &EXACT, false, false,
           "step 1, test loss is only in ");
    expect(RUN(1) STEP(1, 5, 1, 1), RUN(7) RUN(2) STEP(1, 5, 1, 1), &EXACT, true, true,
           "option seed: 1 and 2\nquantity");
}

TEST(other_records_are_skipped) {
    const char *more = "{\"kind\": \"run\", \"version\": \"1\"}\n{\"kind\": \"other\", \"iteration\": 1, "
                       "\"lm_loss\": 7}\n" STEP(1, 5, 1, 1);
    expect(more, STEP(1, 5, 1, 1), &EXACT, true, true, "verdict: equal");
}

TEST(what_is_no_log) {
    const char *good = STEP(1, 5, 1, 1);
    expect_error(good, "[1]\n", &EXACT, "line 1 is not a JSON object");
    expect_error(good, "", &EXACT, "no record of a training step;");
    expect_error(STEP(1, 5, 1, 1) RESTART(0), good, &EXACT, "training step after the last start");
    expect_error("\xff\xfe\n", good, &EXACT, "line 1 is not a JSON object");
    expect_error(STEP(1, "5", 1, 1), good, &EXACT, "line 1: \"lm_loss\" is not a number");
    expect_error(good, STEP(1, 5, 1, 1) STEP(2, 5, [1], 1), &EXACT, "line 2: \"grad_norm\" is not a number");
    expect_error(STEP("1", 5, 1, 1), good, &EXACT, "line 1: \"iteration\" is not a whole number");
    expect_error("{\"lm_loss\": 5}\n", good, &EXACT, "line 1: \"iteration\" is missing");
    expect_error("{\"iteration\": 1}\n", "{\"iteration\": 1, \"seconds\": 2}\n", &EXACT,
                 "the logs have no quantities");
    Str many = {0};
    str_puts(&many, "{\"iteration\": 1");
    for (int i = 0; i < 70; i++) str_printf(&many, ", \"q%d\": 1", i);
    str_puts(&many, "}");
    expect_error(many.s, good, &EXACT, "more than 64 quantities");
    str_free(&many);
}

TEST(only_a_killed_run_leaves_incomplete_lines) {
#define CUT "{\"iteration\": 2, \"lm_"
    const char *good = STEP(1, 5, 1, 1), *left_out = "b: 1 incomplete line is left out\n";
    expect(good, STEP(1, 5, 1, 1) CUT, &EXACT, true, true, left_out);
    expect(good, CUT "\n\n" RESTART(0) STEP(1, 5, 1, 1), &EXACT, true, true, left_out);
    expect_error(good, CUT "\n" STEP(1, 5, 1, 1), &EXACT, "line 1 is not a JSON object (");
    expect_error(good, STEP(1, 5, 1, 1) CUT "\n", &EXACT, "line 2 is not a JSON object (");
    expect_error(good, CUT "\n" CUT "\n" RESTART(0) STEP(1, 5, 1, 1), &EXACT, "line 1 is not");
    expect_error(good, "}\n" RESTART(0) STEP(1, 5, 1, 1), &EXACT, "line 1 is not");
}

TEST(a_restart_replaces_later_steps) {
    const char *straight = STEP(1, 5, 1, 1) STEP(2, 4, 1, 1) STEP(3, 3, 1, 1);
    expect(straight,
           RESTART(0) STEP(1, 5, 1, 1) STEP(2, 4, 1, 1) STEP(3, 3, 1, 1) RESTART(0) STEP(1, 5, 1, 1), &EXACT,
           false, false, "step 2, which is only in ");
    expect(straight,
           STEP(1, 5, 1, 1) STEP(2, 4, 1, 1) STEP(3, 9, 1, 1) STEP(4, 9, 1, 1) EVALUATION("test", 4, 1)
               RESTART(2) STEP(3, 3, 1, 1),
           &EXACT, true, true, "b: 3 records written before a restart from an earlier step are left out\n");
    expect(straight, STEP(1, 5, 1, 1) STEP(2, 4, 1, 1) RESTART(2) STEP(3, 3, 1, 1), &EXACT, true, true,
           "b: 3 steps, 1 to 3\nquantity");
}

/* NaN and infinity are read as Python's json module writes them. */
TEST(words_of_numbers_are_read) {
    const char *good = STEP(1, 5, 1, 1);
    expect(STEP(1, NaN, 1, 1), STEP(1, NaN, 1, 1), &EXACT, false, false, "lm_loss is finite in neither log");
    expect(STEP(1, NaN, 1, 1), good, &EXACT, false, false, "lm_loss nan against 5");
    expect(STEP(1, 5, Infinity, 1), STEP(1, 5, -Infinity, 1), &EXACT, false, false,
           "grad_norm inf against -inf");
    expect(STEP(1, 5, Infinity, 1), STEP(1, 5, "Infinity", 1), &EXACT, true, true, "verdict: equal");
    const char *name = "{\"iteration\": 1, \"a NaN \\\" NaN\": 2}";
    expect(name, name, &EXACT, true, true, "\na NaN \" NaN  ");
    expect_error(STEP(1, nan, 1, 1), good, &EXACT, "line 1 is not a JSON object");
    expect_error(STEP(1, 5 NaN, 1, 1), good, &EXACT, "line 1 is not a JSON object");
}

TEST(differences_are_relative) {
    assert_true(diff_relative(3, 4) == 0.25 && diff_relative(-4, 3) == 1.75 && diff_relative(0, -0.0) == 0);
    assert_true(diff_relative(NAN, NAN) == 0 && isinf(diff_relative(NAN, 1)) &&
                isinf(diff_relative(INFINITY, 1)));
    assert_true(diff_relative(1.7e308, -1.7e308) == 2 && diff_relative(INFINITY, INFINITY) == 0);
    assert_true(diff_same(NAN, -NAN) && !diff_same(0, -0.0) && diff_same(2, 2));
}
