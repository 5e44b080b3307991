/* Compares this program with an earlier result. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/amount.h"
#include "base/file.h"
#include "base/mem.h"
#include "bench/gate/gate.h"

Err gate_open_baseline(Gate *g) {
    const GateOptions *o = g->options;
    const char *bench = g->bench;
    Str text = {0};
    Err e = file_read_stream(o->baseline, &text);
    if (!e.code) e = result_parse(o->baseline, text.s ? text.s : "", text.len, &g->theirs);
    str_free(&text);
    const char *other = json_string_value(json_object_get(g->theirs.json, "bench"));
    if (!e.code &&
        (other ? strcmp(other, bench) : strcmp(g->theirs.unit, strcmp(bench, "train") ? "us" : "ms")))
        e = err_user("'%s' is the result of another benchmark, not of bench %s: measure a baseline with "
                     "bench %s --json",
                     o->baseline, bench, bench);
    for (int64_t i = 0; i < g->theirs.n && !e.code; i++)
        if (!json_array_size(g->theirs.rows[i].samples))
            e = err_user("'%s' has no samples of %s, because it was written by an older version of Isotron: "
                         "measure a baseline with this version, or use --against",
                         o->baseline, g->theirs.rows[i].name);
    return e;
}

Err gate_check_facts(Gate *g, const json_t *facts) {
    g->ours = (Result){.path = "this program", .json = (json_t *)facts};
    const Err e = gate_check_work(g, true);
    g->ours = (Result){.json = NULL};
    return e;
}

/* ---- intervals ---- */

static int64_t read_samples(const ResultRow *row, double **out) {
    const int64_t n = (int64_t)json_array_size(row->samples);
    *out = mem_alloc((size_t)(n + 1) * sizeof **out);
    for (int64_t i = 0; i < n; i++) (*out)[i] = json_number_value(json_array_get(row->samples, (size_t)i));
    return n;
}

/* Each interval misses its median with at most half of the allowed probability of error, so both intervals
 * contain their medians with the required probability. The ratio of the medians is then between the quotients
 * of opposite interval bounds. */
static void judge_row(const Gate *g, const ResultRow *ours, const ResultRow *theirs, GateRow *row) {
    double *x, *y;
    Interval a, b;
    const int64_t n = read_samples(ours, &x), m = read_samples(theirs, &y);
    *row = (GateRow){.ours = ours->time,
                     .theirs = theirs->time,
                     .samples = n < m ? n : m,
                     .least = interval_least(g->error / 2)};
    snprintf(row->name, sizeof row->name, "%s", ours->name);
    interval_of_median(x, n, g->error / 2, &a), interval_of_median(y, m, g->error / 2, &b);
    row->ratio = interval_ratio(a, b);
    row->verdict = gate_judge(row->ratio, g->options->allow);
    free(x), free(y);
}

Err gate_judge_baseline(Gate *g, json_t *json, Str *notes) {
    ERR_RETURN(result_take("this result", json, &g->ours));
    ERR_RETURN(gate_check_work(g, false));
    g->error = INTERVAL_ERROR / (double)g->ours.n;
    g->rows = mem_zero((size_t)g->ours.n, sizeof *g->rows);
    for (int64_t i = 0; i < g->ours.n; i++) {
        const ResultRow *ours = &g->ours.rows[i], *theirs = result_find(&g->theirs, ours->name);
        judge_row(g, ours, theirs, &g->rows[g->n++]);
    }
    if (g->theirs.n > g->n)
        str_printf(notes, "note: not measured here: %s of '%s'\n", amount(g->theirs.n - g->n, "row").s,
                   g->options->baseline);
    return ERR_OK;
}
