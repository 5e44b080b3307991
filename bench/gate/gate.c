#include "bench/gate/gate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/junit.h"
#include "run/provenance.h"

bool gate_parse_percentage(const char *text, double *out) {
    char *end;
    const double x = strtod(text, &end);
    *out = x / 100;
    return end != text && !strcmp(end, "%") && x >= 0 && x <= 1000;
}

GateVerdict gate_judge(Interval ratio, double allow) {
    if (ratio.high <= 1 + allow) return GATE_PASS;
    return ratio.low > 1 + allow ? GATE_REGRESS : GATE_INCONCLUSIVE;
}

GateVerdict gate_verdict(const Gate *g) {
    GateVerdict all = GATE_PASS;
    for (int64_t i = 0; i < g->n; i++) {
        if (g->rows[i].verdict == GATE_REGRESS) return GATE_REGRESS;
        if (g->rows[i].verdict == GATE_INCONCLUSIVE) all = GATE_INCONCLUSIVE;
    }
    return all;
}

void gate_free(Gate *g) {
    for (int64_t i = 0; i < g->n; i++) free(g->rows[i].ratios);
    free(g->rows);
    result_free(&g->ours), result_free(&g->theirs);
}

/* ---- reports ---- */

static const char *const VERDICTS[] = {
    [GATE_PASS] = "PASS", [GATE_REGRESS] = "REGRESS", [GATE_INCONCLUSIVE] = "INCONCLUSIVE"};

static const char *other(const Gate *g) {
    return g->options->against ? g->options->against : g->options->baseline;
}

/* Formats a ratio as "1.006 (0.998 to 1.012)". */
static void put_ratio(const GateRow *r, Str *out) {
    if (r->samples < r->least)
        str_printf(out, "%.4f (%lld samples, but an interval needs %lld)", r->ratio.median,
                   (long long)r->samples, (long long)r->least);
    else
        str_printf(out, "%.4f (%.4f to %.4f)", r->ratio.median, r->ratio.low, r->ratio.high);
}

void gate_print(const Gate *g, Str *out) {
    str_printf(out, "\n%-34s %12s %12s  %-28s %s\n", "", "this program", "compared", "ratio (interval)", "");
    for (int64_t i = 0; i < g->n; i++) {
        const GateRow *r = &g->rows[i];
        str_printf(out, "%-34s %9.3f %s %9.3f %s  ", r->name, r->ours, g->ours.unit, r->theirs, g->ours.unit);
        const size_t begin = out->len;
        put_ratio(r, out);
        str_printf(out, "%*s %s\n", (int)fmax(0, 28 - (double)(out->len - begin)), "", VERDICTS[r->verdict]);
    }
    str_printf(
        out,
        "compared with %s, commit %s; ratio: our time over its time, the limit is %.4g; the intervals hold "
        "together with a probability of %g %%\n",
        other(g), result_fact(&g->theirs, "commit"), 1 + g->options->allow, 100 * (1 - INTERVAL_ERROR));
    if (g->options->baseline)
        str_puts(out, "A baseline cannot distinguish a slower machine from a slower program, but --against "
                      "PROGRAM can.\n");
    str_printf(out, "verdict: %s\n", VERDICTS[gate_verdict(g)]);
}

static void junit_row(const Gate *g, const GateRow *r, Str *out) {
    static const char IN[] = "        ";
    str_printf(out, "    <testcase classname=\"bench.%s\" name=\"", g->bench);
    xml_text(out, r->name);
    str_puts(out, "\">\n      <properties>\n");
    junit_number(out, IN, "ratio", r->ratio.median);
    if (r->samples >= r->least) junit_number(out, IN, "low", r->ratio.low);
    junit_number(out, IN, "high", r->ratio.high);
    junit_number(out, IN, "limit", 1 + g->options->allow);
    junit_number(out, IN, "samples", (double)r->samples);
    str_puts(out, "      </properties>\n");
    if (r->verdict != GATE_PASS) {
        const char *kind = r->verdict == GATE_REGRESS ? "failure" : "skipped";
        str_printf(out, "      <%s message=\"%s: ratio ", kind, VERDICTS[r->verdict]);
        put_ratio(r, out);
        str_printf(out, ", limit %.4g\">%.6g %s against %.6g %s</%s>\n", 1 + g->options->allow, r->ours,
                   g->ours.unit, r->theirs, g->ours.unit, kind);
    }
    str_puts(out, "    </testcase>\n");
}

void gate_junit(const Gate *g, Str *out) {
    static const char IN[] = "      ";
    int64_t count[GATE_INCONCLUSIVE + 1] = {0};
    for (int64_t i = 0; i < g->n; i++) count[g->rows[i].verdict]++;
    str_printf(out,
               "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n  <testsuite name=\"bench %s\" "
               "tests=\"%lld\" "
               "failures=\"%lld\" skipped=\"%lld\">\n    <properties>\n",
               g->bench, (long long)g->n, (long long)count[GATE_REGRESS],
               (long long)count[GATE_INCONCLUSIVE]);
    for (int i = 0; i < FACTS; i++)
        junit_property(out, IN, PROVENANCE_NAMES[i], result_fact(&g->ours, PROVENANCE_NAMES[i]));
    const char *device = json_string_value(json_object_get(g->ours.json, "device"));
    if (device) junit_property(out, IN, "device", device);
    junit_property(out, IN, "compared with", other(g));
    junit_property(out, IN, "compared commit", result_fact(&g->theirs, "commit"));
    str_puts(out, "    </properties>\n");
    for (int64_t i = 0; i < g->n; i++) junit_row(g, &g->rows[i], out);
    str_puts(out, "  </testsuite>\n</testsuites>\n");
}

static json_t *row_json(const GateRow *r) {
    json_t *row = json_pack("{s:s, s:f, s:f, s:{s:f}, s:s}", "name", r->name, "ours", r->ours, "theirs",
                            r->theirs, "ratio", "median", r->ratio.median, "verdict", VERDICTS[r->verdict]);
    json_t *ratio = json_object_get(row, "ratio"), *pairs = json_array();
    if (r->samples >= r->least) json_object_set_new(ratio, "low", json_real(r->ratio.low));
    if (isfinite(r->ratio.high)) json_object_set_new(ratio, "high", json_real(r->ratio.high));
    for (int64_t i = 0; i < r->samples; i++) json_array_append_new(pairs, json_real(r->ratios[i]));
    json_object_set_new(row, "pairs", pairs);
    return row;
}

json_t *gate_json(const Gate *g) {
    json_t *rows = json_array();
    for (int64_t i = 0; i < g->n; i++) json_array_append_new(rows, row_json(&g->rows[i]));
    return json_pack("{s:s, s:s, s:O?, s:O?, s:s, s:f, s:f, s:s, s:o}", "bench", g->bench, "against",
                     other(g), "provenance", json_object_get(g->ours.json, "provenance"),
                     "against_provenance", json_object_get(g->theirs.json, "provenance"), "unit",
                     g->ours.unit, "allow", g->options->allow, "error", INTERVAL_ERROR, "verdict",
                     VERDICTS[gate_verdict(g)], "rows", rows);
}
