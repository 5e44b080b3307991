#include "acceptance/compare.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

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

/* ---- the last good run ---- */

Err compare_open_good(const char *path, json_t **out) {
    Str text = {0};
    json_error_t why;
    *out = NULL;
    ERR_RETURN(file_read(path, &text));
    json_t *all = json_loadb(text.s ? text.s : "", text.len, 0, &why);
    str_free(&text);
    if (!json_is_array(json_object_get(all, "stages"))) {
        json_decref(all);
        return err_user("'%s' is not a report of validate: give a file that 'isotron validate --json' wrote",
                        path);
    }
    *out = all;
    return ERR_OK;
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

static void compare_speed(const Acceptance *a, Outcome *r, const json_t *good) {
    const bool gpu = a->options->config->device == ON_CUDA;
    for (int i = 0; i < r->n_metrics; i++) {
        const json_t *row = find_named(json_object_get(good, "metrics"), r->metric[i].name);
        const Metric theirs = metric_of(row);
        double ratio;
        if (!theirs.n || !r->metric[i].n) continue;
        if (compare_rates(&r->metric[i], &theirs, error_of_one(r->n_metrics), a->options->allow, &ratio) !=
            SLOWER)
            continue;
        outcome_add(r, gpu ? ACCEPT_DEGRADED : ACCEPT_INCONCLUSIVE, r->metric[i].name,
                    "%.3g %s, %.0f %% less than %.3g in the last good run%s", metric_median(&r->metric[i]),
                    r->metric[i].unit, 100 * (1 - ratio), metric_median(&theirs),
                    gpu ? "" : "; a CPU may be busy with other work");
    }
}

static void changed(const Acceptance *a, Outcome *r, const char *name, const char *now, const char *was) {
    const bool allowed = a->options->allow_changes;
    outcome_add(r, allowed ? ACCEPT_PASS : ACCEPT_DEGRADED, name,
                "it is '%.150s', and was '%.150s' in the last good run", now, was);
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
    const json_t *good = find_named(json_object_get(a->good, "stages"), row->name);
    if (!good) return;
    if (json_object_get(good, "fingerprint")) compare_facts(a, row->a, good);
    compare_speed(a, row->a, good);
}

/* ---- two libraries ---- */

void compare_libraries(const Acceptance *a, AcceptRow *row) {
    Outcome *x = row->a, *y = row->b;
    for (int i = 0; i < y->n_metrics; i++) {
        const Metric *theirs = outcome_metric(x, y->metric[i].name);
        double ratio;
        if (!theirs) continue;
        const Change change =
            compare_rates(&y->metric[i], theirs, error_of_one(y->n_metrics), a->options->allow, &ratio);
        if (change == SLOWER)
            outcome_add(y, ACCEPT_DEGRADED, "NCCL B", "B is %.0f %% slower than A at %s: %.3g %s, not %.3g",
                        100 * (1 - ratio), y->metric[i].name, metric_median(&y->metric[i]), y->metric[i].unit,
                        metric_median(theirs));
        if (change == FASTER)
            outcome_add(y, ACCEPT_PASS, "NCCL B", "B is %.0f %% faster than A at %s", 100 * (ratio - 1),
                        y->metric[i].name);
    }
    for (int i = 0; i < y->n_hashes; i++)
        for (int k = 0; k < x->n_hashes; k++)
            if (!strcmp(x->hash[k].name, y->hash[i].name) && x->hash[k].hash != y->hash[i].hash)
                outcome_add(y, ACCEPT_PASS, "NCCL B", "B differs bitwise from A in %s (order of summation)",
                            y->hash[i].name);
}
