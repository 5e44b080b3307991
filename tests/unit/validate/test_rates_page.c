/* Tests that a rate's bar shows its fraction of the roof (or, without a roof, of the good run), and that each of them
 * has a tick. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "unit/cmocka_all.h"
#include "validate/rates_page.h"

typedef struct Case {
    double rate, of_b, roof, good; /* 0: absent */
    const char *wanted;            /* all numbers of the bar and its ticks; the axis has 320 pixels */
} Case;

/* The axis ends at the largest fraction, 5 / 4. */
#define BAR(y, width, colour, label_y, label)                                                                \
    "<rect y=\"" y "\" width=\"" width "\" height=\"10\" fill=\"" colour "\"/><text x=\"326\" y=\"" label_y  \
    "\">" label "</text>"
#define TICK(x, height, colour) "<rect x=\"" x "\" width=\"3\" height=\"" height "\" fill=\"" colour "\"/>"
static const Case CASES[] = {
    {300, 0, 400, 0,
     BAR("3", "192.0", "#0072b2", "12", "75 % of the roof") TICK("254.5", "16", "#57606a") "</svg>"},
    {300, 0, 400, 500,
     BAR("3", "192.0", "#0072b2", "12", "75 % of the roof, 60 % of the good run")
         TICK("254.5", "16", "#57606a") TICK("318.5", "16", "#d55e00") "</svg>"},
    {50, 100, 0, 200,
     BAR("3", "64.0", "#0072b2", "12", "25 % of the good run")
         BAR("19", "128.0", "#009e73", "28", "50 % of the good run") TICK("254.5", "32", "#d55e00") "</svg>"},
    {7, 0, 0, 0, "<td>7</td><td></td><td></td><td></td><td>GB/s</td><td></td></tr>"},
};
enum { CASES_N = sizeof CASES / sizeof *CASES };

static json_t *good_run(void) {
    json_t *metrics = json_array();
    for (int i = 0; i < CASES_N; i++) {
        const char name[] = {'r', (char)('0' + i), 0};
        if (CASES[i].good > 0)
            json_array_append_new(metrics, json_pack("{s:s, s:[f]}", "name", name, "samples", CASES[i].good));
    }
    return json_pack("{s:i, s:[{s:s, s:o}]}", "ranks", 2, "stages", "name", "speed", "metrics", metrics);
}

TEST(bars_are_shares) {
    const Config config = {.ranks = 2};
    const ValidateOptions options = {.config = &config, .nccl_b = "b.so"};
    Outcome *a = mem_zero(1, sizeof *a), *b = mem_zero(1, sizeof *b), *merged = mem_zero(1, sizeof *merged);
    for (int i = 0; i < CASES_N; i++) {
        const char name[] = {'r', (char)('0' + i), 0};
        outcome_sample(a, "GB/s", CASES[i].rate, name);
        outcome_roof(a, CASES[i].roof, name);
        if (CASES[i].of_b > 0) outcome_sample(b, "GB/s", CASES[i].of_b, name);
    }
    outcome_merge(merged, a);
    Validation all = {.options = &options, .ranks = 2, .good = good_run(), .nccl_name = {"one.so", "two.so"}};
    all.row[STAGE_speed] = (ValidateRow){.name = "speed", .what = "", .a = merged, .b = b};
    Str page = {0}, json = {0};
    rates_page(&all, &page);
    for (int i = 0; i < CASES_N; i++)
        if (!strstr(page.s, CASES[i].wanted)) fail_msg("no %s in %s", CASES[i].wanted, page.s);
    assert_non_null(strstr(page.s, "<text x=\"256.0\" y=\"12\" text-anchor=\"middle\">100 %</text>"));
    validate_json(&all, &json);
    assert_non_null(strstr(json.s, "\"roof\": 400.0"));
    str_free(&page), str_free(&json);
    json_decref(all.good);
    free(a), free(b), free(merged);
}

TEST(without_either_it_is_a_table) {
    const Config config = {.ranks = 1};
    const ValidateOptions options = {.config = &config};
    Outcome *a = mem_zero(1, sizeof *a);
    outcome_sample(a, "1/s", 3, "rate");
    Validation all = {.options = &options, .ranks = 1};
    all.row[STAGE_speed] = (ValidateRow){.name = "speed", .what = "", .a = a};
    Str page = {0};
    rates_page(&all, &page);
    assert_string_equal(
        page.s, "<h2>Rates</h2>\n<table><tr><th>stage</th><th>rate</th><th>median</th><th>unit</th></tr>\n"
                "<tr><td>speed</td><td>rate</td><td>3</td><td>1/s</td></tr>\n</table>\n");
    str_free(&page);
    free(a);
}
