/* Tests that a comparison with a good run or a second library reports what it could not compare. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "unit/err.h"
#include "unit/temp_dir.h"
#include "validate/compare.h"

enum { FEW = 3, MANY = OUTCOME_ROUNDS };
static const char SPEED[] = "speed", RATE[] = "link 0-1";

/* A validation that has only the stage `speed`. */
typedef struct World {
    Config config;
    ValidateOptions options;
    Validation a;
    ValidateRow *row;
} World;

static void add_rates(Outcome *r, int n, double rate) {
    for (int i = 0; i < n; i++) outcome_sample(r, "GB/s", rate, RATE);
}

/* Creates a stage `speed` with n samples. If with_b is true, library B gets the same samples. */
static World *new_world(DeviceOption device, int n, double rate, bool with_b) {
    World *w = mem_zero(1, sizeof *w);
    w->config.device = device;
    w->options = (ValidateOptions){.config = &w->config, .nccl_b = with_b ? "b" : NULL, .allow = 0.05};
    w->a.options = &w->options, w->a.ranks = 3;
    w->row = &w->a.row[STAGE_speed];
    *w->row = (ValidateRow){.name = SPEED, .what = "", .a = mem_zero(1, sizeof(Outcome))};
    if (with_b) w->row->b = mem_zero(1, sizeof(Outcome));
    add_rates(with_b ? w->row->b : w->row->a, n, rate);
    return w;
}

static void free_world(World *w) {
    json_decref(w->a.good);
    free(w->row->a), free(w->row->b);
    free(w);
}

TEST(libraries_with_few_samples_are_inconclusive) {
    Str text = {0}, html = {0}, junit = {0};
    World *w = new_world(ON_CPU, FEW, 1, true);
    add_rates(w->row->a, FEW, 100);
    compare_libraries(&w->a, w->row);
    assert_int_equal(outcome_verdict(w->row->b), VALIDATE_INCONCLUSIVE);
    validate_print(&w->a, &text), validate_html(&w->a, &html), validate_junit(&w->a, &junit);
    const char *said = "not certified: B: speed: link 0-1, with too few samples";
    assert_non_null(strstr(text.s, said));
    assert_non_null(strstr(html.s, said));
    assert_non_null(strstr(junit.s, said));
    str_free(&text), str_free(&html), str_free(&junit);
    free_world(w);
}

TEST(a_slower_library_is_degraded) {
    World *w = new_world(ON_CPU, MANY, 1, true);
    add_rates(w->row->a, MANY, 100);
    compare_libraries(&w->a, w->row);
    assert_true(outcome_verdict(w->row->b) == VALIDATE_DEGRADED && !w->row->b->n_limits);
    free_world(w);
}

/* A stage is wrong with probability 0.05. Each of n rates may be wrong with probability 0.05 / n, of which the median
 * of each library gets half. The probability that all 8 samples are on one side of the median is 2 / 2^8 = 0.0078. */
TEST(rates_share_the_error_of_a_stage) {
    for (int n = 1; n <= 6; n++) {
        World *w = new_world(ON_CPU, 0, 0, true);
        for (int i = 0; i < 8 * n; i++) {
            char rate[40];
            snprintf(rate, sizeof rate, "link 0-%d", i % n + 1);
            outcome_sample(w->row->a, "GB/s", 100, rate), outcome_sample(w->row->b, "GB/s", 1, rate);
        }
        compare_libraries(&w->a, w->row);
        const bool enough = 2 / pow(2, 8) <= 0.05 / n / 2;
        assert_int_equal(outcome_verdict(w->row->b), enough ? VALIDATE_DEGRADED : VALIDATE_INCONCLUSIVE);
        free_world(w);
    }
}

static Err open_good(const char *text, json_t **out) {
    char dir[64], path[96];
    temp_dir(dir);
    snprintf(path, sizeof path, "%s/good.json", dir);
    assert_ok(file_write_atomic(path, text, strlen(text)));
    const Err e = compare_open_good(path, out);
    file_remove_tree(dir);
    return e;
}

/* Adds two turns of 13 rounds, in which the means of the class increase from `first`, then from `second`. */
static void add_class(Outcome *r, const char *name, double first, double second) {
    for (int i = 0; i < 26; i++)
        for (int k = 1; k < 4; k++) { /* three rates */
            char rate[40];
            snprintf(rate, sizeof rate, "%s %d KiB", name, k);
            outcome_sample(r, "GB/s", (i < 13 ? first + i : second + i - 13) * pow(4, k - 2), rate);
        }
}

/* With an error of 0.05 / 6 for each of three classes and two libraries, the interval of the median of 13
 * samples is from the second to the second-to-last, because P(Bin(13, 1/2) < 2) = 0.0017 and P(Bin(13, 1/2) <
 * 3) = 0.011. The reported interval contains those of all turns. */
TEST(classes_are_compared_by_their_geometric_means) {
    static const char *const SAID[][3] = {{"B is 94.3 % faster than A; B / A = 1.943, from 1.661 to 2.319",
                                           "equal within 9.9 %; B / A = 1.000, from 0.910 to 1.099",
                                           "equal within 143 %; B / A = 1.000, from 0.412 to 2.429"},
                                          {"B is 48.5 % slower than A; B / A = 0.515, from 0.431 to 0.602",
                                           "equal within 9.9 %; B / A = 1.000, from 0.910 to 1.099",
                                           "equal within 143 %; B / A = 1.000, from 0.412 to 2.429"}};
    Outcome *a = mem_zero(1, sizeof *a), *b = mem_zero(1, sizeof *b);
    add_class(a, "sum", 90, 110), add_class(b, "sum", 200, 200);
    for (int i = 0; i < 2; i++)
        add_class(i ? b : a, "gather", 100, 100), add_class(i ? b : a, "summary", 6, 6);
    outcome_sample(b, "GB/s", 1, "only B");
    for (int swap = 0; swap < 2; swap++) {
        const ValidateRow row = {.a = swap ? b : a, .b = swap ? a : b};
        RateClass c[RATE_CLASSES];
        assert_int_equal(compare_classes(&row, c), 3);
        for (int i = 0; i < 3; i++) {
            Str text = {0};
            compare_class_text(&c[i], &text);
            assert_string_equal(text.s, SAID[swap][i]);
            str_free(&text);
        }
    }
    free(a), free(b);
}

TEST(only_reports_of_passed_runs_are_good) {
    json_t *good;
    static const char *const BAD[][2] = {
        {"{\"schema\": 2, \"verdict\": \"PASS\", \"ranks\": 3, \"stages\": []}", "schema is not 1"},
        {"{\"schema\": 1, \"verdict\": \"GOOD\", \"ranks\": 3, \"stages\": []}",
         "verdict is not one of PASS, "},
        {"{\"schema\": 1, \"verdict\": \"PASS\", \"ranks\": 3}", "stages is not an array"},
        {"{\"schema\": 1, \"verdict\": \"PASS\", \"stages\": []}", "ranks is not a positive"},
        {"{\"schema\": 1, \"verdict\": \"PASS\", \"ranks\": \"3\", \"stages\": []}",
         "ranks is not a positive"},
        {"{\"schema\": 1, \"verdict\": \"PASS\", \"ranks\": 3, \"device\": 1, \"stages\": []}",
         "device is not a"},
        {"{\"schema\": 1, \"verdict\": \"FAIL\", \"ranks\": 3, \"stages\": []}", "has the verdict FAIL"},
        {"{\"schema\": 1, \"verdict\": \"DEGRADED\", \"ranks\": 3, \"stages\": []}",
         "has the verdict DEGRADED"},
        {"[1]", "schema is not 1"},
        {"", "it is not valid JSON"}};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        const Err e = open_good(BAD[i][0], &good);
        assert_true(e.code == ERR_USER && strstr(e.msg, BAD[i][1]) && !good);
    }
}

/* Damaged members must be errors. Otherwise they would count as changes of the machine, or be ignored. */
TEST(a_stage_has_texts_and_rates) {
    json_t *good;
    static const char *const BAD[][2] = {
        {"1", "stages[1].name is not a string"},
        {"{\"name\": 1}", "stages[1].name is not a string"},
        {"{\"name\": \"x\", \"transport\": []}", "stages[1].transport is not a string"},
        {"{\"name\": \"x\", \"fingerprint\": [1, 2]}", "stages[1].fingerprint is not an object of strings"},
        {"{\"name\": \"x\", \"fingerprint\": \"a\"}", "stages[1].fingerprint is not an object of strings"},
        {"{\"name\": \"x\", \"fingerprint\": {\"a\": 1}}",
         "stages[1].fingerprint is not an object of strings"},
        {"{\"name\": \"x\", \"metrics\": 5}", "stages[1].metrics is not an array"},
        {"{\"name\": \"x\", \"metrics\": [5]}", "stages[1].metrics[0].name is not a string"},
        {"{\"name\": \"x\", \"metrics\": [{\"name\": \"y\"}]}",
         "stages[1].metrics[0].samples is not an array"},
        {"{\"name\": \"x\", \"metrics\": [{\"name\": \"y\", \"samples\": \"q\"}]}",
         "metrics[0].samples is not"},
        {"{\"name\": \"x\", \"metrics\": [{\"name\": \"y\", \"samples\": [1, \"q\"]}]}",
         "metrics[0].samples is not"},
        {"{\"name\": \"x\", \"metrics\": [{\"name\": \"y\", \"samples\": [1, 0]}]}",
         "metrics[0].samples is not"},
        {"{\"name\": \"x\", \"metrics\": [{\"name\": \"y\", \"samples\": [1e308]}]}",
         "metrics[0].samples is not"}};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        Str text = {0};
        str_printf(
            &text,
            "{\"schema\": 1, \"verdict\": \"PASS\", \"ranks\": 3, \"stages\": [{\"name\": \"a\"}, %s]}",
            BAD[i][0]);
        const Err e = open_good(text.s, &good);
        assert_true(e.code == ERR_USER && !good);
        assert_non_null(strstr(e.msg, BAD[i][1]));
        assert_non_null(strstr(e.msg, ": give a file written"));
        str_free(&text);
    }
}

TEST(a_good_run_is_a_regular_file_of_a_limited_size) {
    char dir[64], path[96];
    json_t *good;
    temp_dir(dir);
    Err e = compare_open_good("/dev/zero", &good);
    assert_true(e.code == ERR_USER && strstr(e.msg, "'/dev/zero' is a device"));
    e = compare_open_good(dir, &good);
    assert_true(e.code == ERR_USER && strstr(e.msg, "is a folder"));
    snprintf(path, sizeof path, "%s/large", dir);
    assert_ok(file_write_atomic(path, "", 0));
    assert_int_equal(truncate(path, INT64_C(1) << 40), 0);
    e = compare_open_good(path, &good);
    assert_true(e.code == ERR_USER && strstr(e.msg, "is larger than 64 MiB"));
    file_remove_tree(dir);
}

/* Compares with a good run that has n samples of one rate in a stage. `members` are additional members of the
 * report, `more` of the stage. */
static World *compared_with(const char *members, DeviceOption device, const char *stage, const char *more,
                            const char *rate, int n) {
    Str text = {0};
    World *w = new_world(device, MANY, 1, false);
    snprintf(w->row->a->transport, sizeof w->row->a->transport, "NCCL 2.28.9");
    str_printf(&text,
               "{\"schema\": 1, \"verdict\": \"PASS\", %s, \"stages\": [{\"name\": \"%s\", %s \"metrics\": "
               "[{\"name\": \"%s\", \"samples\": [2",
               members, stage, more, rate);
    for (int i = 1; i < n; i++) str_puts(&text, ", 2");
    str_puts(&text, "]}]}]}");
    assert_ok(open_good(text.s, &w->a.good));
    str_free(&text);
    compare_with_good(&w->a, w->row);
    return w;
}

static World *compared(DeviceOption device, const char *stage, const char *rate, int n) {
    return compared_with("\"ranks\": 3", device, stage, "", rate, n);
}

/* Rates depend on the number of ranks, the kind of device and the transport. The rates of the good run are
 * twice as high, so that a comparison would fail. */
TEST(a_run_of_another_kind_is_not_compared) {
    static const char HERE[] = "\"ranks\": 3, \"device\": \"cuda\"";
    static const struct {
        const char *members, *more, *limit;
    } CASES[] = {{"\"ranks\": 2", "", "speed: rates, because the good run had 2 ranks, but this run has 3"},
                 {"\"ranks\": 4", "", "speed: rates, because the good run had 4 ranks, but this run has 3"},
                 {"\"ranks\": 3, \"device\": \"cpu\"", "",
                  "speed: rates, because the good run had --device cpu, but this run has cuda"},
                 {HERE, "\"transport\": \"through host memory, because NCCL 2.17.1 is too old\",",
                  "speed: rates, because the ranks communicated through host memory in the good run, "
                  "but with NCCL in this run"},
                 {HERE, "\"summary\": \"through host memory\", \"transport\": \"NCCL 2.27.3\",", NULL},
                 {HERE, "", NULL}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        World *w = compared_with(CASES[i].members, ON_CUDA, SPEED, CASES[i].more, RATE, MANY);
        const Outcome *r = w->row->a;
        assert_int_equal(outcome_verdict(r), CASES[i].limit ? VALIDATE_INCONCLUSIVE : VALIDATE_DEGRADED);
        assert_int_equal(r->n_limits, CASES[i].limit ? 1 : 0);
        if (CASES[i].limit) assert_string_equal(r->limit[0], CASES[i].limit);
        free_world(w);
    }
}

/* The report of a run can be used as the good run of the next one. */
TEST(a_report_can_be_the_good_run) {
    Str text = {0};
    World *w = new_world(ON_CUDA, MANY, 1, false);
    outcome_fact(w->row->a, true, "driver", "1");
    snprintf(w->row->a->transport, sizeof w->row->a->transport, "NCCL 2.28.9");
    validate_json(&w->a, &text);
    assert_ok(open_good(text.s, &w->a.good));
    compare_with_good(&w->a, w->row);
    assert_true(outcome_verdict(w->row->a) == VALIDATE_PASS && !w->row->a->n_limits);
    snprintf(w->row->a->transport, sizeof w->row->a->transport, "through host memory");
    compare_with_good(&w->a, w->row);
    assert_non_null(strstr(w->row->a->limit[0], "communicated with NCCL in the good run, but"));
    w->row->a->n_limits = 0, w->config.device = ON_CPU;
    compare_with_good(&w->a, w->row);
    assert_non_null(strstr(w->row->a->limit[0], "the good run had --device cuda, but this run has cpu"));
    str_free(&text);
    free_world(w);
}

TEST(what_the_good_run_lacks_is_a_limit) {
    static const struct {
        const char *stage, *rate;
        int n;
        const char *limit;
    } CASES[] = {{"roofs", RATE, MANY, "speed: link 0-1, which the good run does not have"},
                 {SPEED, "link 0-2", MANY, "speed: link 0-1, which the good run does not have"},
                 {SPEED, RATE, FEW, "speed: link 0-1, with too few samples for a comparison with the"}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        World *w = compared(ON_CUDA, CASES[i].stage, CASES[i].rate, CASES[i].n);
        assert_int_equal(outcome_verdict(w->row->a), VALIDATE_INCONCLUSIVE);
        assert_non_null(strstr(w->row->a->limit[0], CASES[i].limit));
        free_world(w);
    }
}

TEST(a_slower_machine_is_degraded) {
    World *gpu = compared(ON_CUDA, SPEED, RATE, MANY), *cpu = compared(ON_CPU, SPEED, RATE, MANY);
    assert_true(outcome_verdict(gpu->row->a) == VALIDATE_DEGRADED && !gpu->row->a->n_limits);
    assert_int_equal(outcome_verdict(cpu->row->a), VALIDATE_INCONCLUSIVE);
    free_world(gpu), free_world(cpu);
}

/* A path may contain any bytes. */
TEST(reports_are_utf8) {
    char word[] = "--good=\xff.json", *words[] = {word};
    Str text = {0}, junit = {0};
    World *w = new_world(ON_CPU, FEW, 1, false);
    w->options.argv = words, w->options.argc = 1;
    validate_json(&w->a, &text), validate_junit(&w->a, &junit);
    json_t *all = json_loadb(text.s, text.len, 0, NULL),
           *stage = json_array_get(json_object_get(all, "stages"), 0);
    assert_string_equal(json_string_value(json_object_get(stage, "name")), SPEED);
    assert_true(utf8_valid(junit.s, junit.len));
    json_decref(all);
    str_free(&text), str_free(&junit);
    free_world(w);
}
