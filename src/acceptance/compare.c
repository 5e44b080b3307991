#include "acceptance/compare.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/amount.h"
#include "base/file.h"
#include "bench/gate/gate.h"
#include "config/enums.h"

/* ---- rates ---- */

typedef enum Change { SAME, FASTER, SLOWER, NOT_KNOWN } Change;

/* The interval of ours / theirs, from the intervals of both medians (bench/gate). */
static Change compare_rates(const Metric *ours, const Metric *theirs, double error, double allow,
                            double *ratio) {
    Interval a, b;
    *ratio = metric_median(ours) / metric_median(theirs);
    bool known = interval_of_median(ours->sample, ours->n, error / 2, &a);
    known = interval_of_median(theirs->sample, theirs->n, error / 2, &b) && known;
    if (!known) return NOT_KNOWN;
    if (a.high / b.low < 1 - allow) return SLOWER;
    return a.low / b.high > 1 + allow ? FASTER : SAME;
}

/* A rate over all metrics of a stage; each may err with this probability (Bonferroni). */
static double error_of_one(int n) {
    const double most = ldexp(1, 1 - OUTCOME_ROUNDS); /* what so many samples can show */
    return fmax(GATE_ERROR / n, 2 * most);
}

/* The rates of a stage that are compared with others. */
typedef struct Rates {
    int judged, few, absent;              /* few: of too few samples; absent: only this run has them */
    const char *first_few, *first_absent; /* their names */
} Rates;

static Change judge_rate(const Outcome *r, int i, const Metric *theirs, double allow, Rates *rates,
                         double *ratio) {
    const Metric *ours = &r->metric[i];
    const bool there = theirs && theirs->n;
    const Change change =
        there ? compare_rates(ours, theirs, error_of_one(r->n_metrics), allow, ratio) : NOT_KNOWN;
    if (change != NOT_KNOWN)
        rates->judged++;
    else if (there && !rates->few++)
        rates->first_few = ours->name;
    else if (!there && !rates->absent++)
        rates->first_absent = ours->name;
    return change;
}

static void limit_rates(Outcome *r, const char *stage, const char *first, int n, const char *why) {
    if (n == 1) outcome_limit(r, "%s: %s, %s", stage, first, why);
    if (n > 1) outcome_limit(r, "%s: %s and %s, %s", stage, first, amount(n - 1, "other rate").s, why);
}

/* ---- the last good run ---- */

static Err check_good(const json_t *report, const char *path) {
    enum { SCHEMA = 1 };
    const char *verdict = json_string_value(json_object_get(report, "verdict"));
    int v = 0;
    while (v <= ACCEPT_FAIL && (!verdict || strcmp(verdict, STAGE_VERDICTS[v]))) v++;
    if (!json_is_array(json_object_get(report, "stages")) || v > ACCEPT_FAIL ||
        json_integer_value(json_object_get(report, "schema")) != SCHEMA)
        return err_user("'%s' is not a report of validate with schema %d: give a file that 'isotron validate "
                        "--json' wrote",
                        path, (int)SCHEMA);
    if (v >= ACCEPT_DEGRADED)
        return err_user("'%s' has the verdict %s: give the report of a run that passed", path, verdict);
    return ERR_OK;
}

Err compare_open_good(const char *path, json_t **out) {
    Str text = {0};
    json_error_t why;
    *out = NULL;
    ERR_RETURN(file_read(path, &text));
    json_t *all = json_loadb(text.s ? text.s : "", text.len, 0, &why);
    str_free(&text);
    const Err e = check_good(all, path);
    if (e.code)
        json_decref(all);
    else
        *out = all;
    return e;
}

static const json_t *find_named(const json_t *list, const char *name) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *has = json_string_value(json_object_get(json_array_get(list, i), "name"));
        if (has && !strcmp(has, name)) return json_array_get(list, i);
    }
    return NULL;
}

static Metric metric_of(const json_t *from) {
    const json_t *samples = json_object_get(from, "samples");
    Metric m = {.n = 0};
    for (size_t i = 0; i < json_array_size(samples) && m.n < OUTCOME_SAMPLES; i++) {
        const double x = json_number_value(json_array_get(samples, i));
        if (x > 0) m.sample[m.n++] = x;
    }
    return m;
}

static Rates compare_speed(const Acceptance *a, Outcome *r, const json_t *good) {
    const bool gpu = a->options->config->device == ON_CUDA;
    Rates rates = {.judged = 0};
    for (int i = 0; i < r->n_metrics; i++) {
        const json_t *row = find_named(json_object_get(good, "metrics"), r->metric[i].name);
        const Metric theirs = metric_of(row);
        double ratio;
        if (judge_rate(r, i, &theirs, a->options->allow, &rates, &ratio) != SLOWER) continue;
        outcome_add(r, gpu ? ACCEPT_DEGRADED : ACCEPT_INCONCLUSIVE, r->metric[i].name,
                    "%.3g %s, %.0f %% less than %.3g in the last good run%s", metric_median(&r->metric[i]),
                    r->metric[i].unit, 100 * (1 - ratio), metric_median(&theirs),
                    gpu ? "" : "; a CPU may be busy with other work");
    }
    return rates;
}

static void changed(const Acceptance *a, Outcome *r, const char *name, const char *now, const char *was) {
    const bool allowed = a->options->allow_changes;
    outcome_add(r, allowed ? ACCEPT_PASS : ACCEPT_DEGRADED, name,
                "it is '%.150s', and was '%.150s' in the last good run", now, was);
}

static bool has_fingerprint(const Outcome *r) {
    bool any = false;
    for (int i = 0; i < r->n_facts; i++) any |= r->fact[i].lasting;
    return any;
}

static const Fact *find_fact(const Outcome *r, const char *name) {
    for (int i = 0; i < r->n_facts; i++)
        if (r->fact[i].lasting && !strcmp(r->fact[i].name, name)) return &r->fact[i];
    return NULL;
}

static void compare_facts(const Acceptance *a, Outcome *r, const json_t *good) {
    const json_t *facts = json_object_get(good, "fingerprint");
    for (int i = 0; i < r->n_facts; i++) {
        const char *was = json_string_value(json_object_get(facts, r->fact[i].name));
        if (r->fact[i].lasting && (!was || strcmp(was, r->fact[i].value)))
            changed(a, r, r->fact[i].name, r->fact[i].value, was ? was : "none");
    }
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)facts, name, value) {
        if (!find_fact(r, name) && json_is_string(value))
            changed(a, r, name, "none", json_string_value(value));
    }
}

void compare_with_good(const Acceptance *a, AcceptRow *row) {
    Outcome *r = row->a;
    const json_t *good = find_named(json_object_get(a->good, "stages"), row->name);
    const bool marked = has_fingerprint(r), comparable = marked && json_object_get(good, "fingerprint");
    if (!a->good) return;
    if (comparable) compare_facts(a, r, good);
    if (marked && !comparable)
        outcome_limit(r, "%s: the fingerprint, because the good run has none", row->name);
    const Rates rates = compare_speed(a, r, good);
    limit_rates(r, row->name, rates.first_absent, rates.absent, "which the good run does not have");
    limit_rates(r, row->name, rates.first_few, rates.few,
                "with too few samples for a comparison with the good run");
    if (!comparable && !rates.judged && (marked || r->n_metrics))
        outcome_add(r, ACCEPT_INCONCLUSIVE, "", "nothing could be compared with the good run");
}

/* ---- two libraries ---- */

void compare_libraries(const Acceptance *a, AcceptRow *row) {
    Outcome *x = row->a, *y = row->b;
    Rates rates = {.judged = 0};
    for (int i = 0; i < y->n_metrics; i++) {
        const Metric *theirs = outcome_metric(x, y->metric[i].name);
        double ratio;
        const Change change = judge_rate(y, i, theirs, a->options->allow, &rates, &ratio);
        if (change == SLOWER)
            outcome_add(y, ACCEPT_DEGRADED, "NCCL B", "B is %.0f %% slower than A at %s: %.3g %s, not %.3g",
                        100 * (1 - ratio), y->metric[i].name, metric_median(&y->metric[i]), y->metric[i].unit,
                        metric_median(theirs));
        if (change == FASTER)
            outcome_add(y, ACCEPT_PASS, "NCCL B", "B is %.0f %% faster than A at %s", 100 * (ratio - 1),
                        y->metric[i].name);
    }
    limit_rates(y, row->name, rates.first_absent, rates.absent, "which A does not have");
    limit_rates(y, row->name, rates.first_few, rates.few,
                "with too few samples for a comparison of B with A");
    if (y->n_metrics && !rates.judged)
        outcome_add(y, ACCEPT_INCONCLUSIVE, "", "no rate of B could be compared with A");
    for (int i = 0; i < y->n_hashes; i++)
        for (int k = 0; k < x->n_hashes; k++)
            if (!strcmp(x->hash[k].name, y->hash[i].name) && x->hash[k].hash != y->hash[i].hash)
                outcome_add(y, ACCEPT_PASS, "NCCL B", "B differs bitwise from A in %s (order of summation)",
                            y->hash[i].name);
}
