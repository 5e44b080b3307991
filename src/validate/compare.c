#include "validate/compare.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/amount.h"
#include "base/file.h"
#include "base/statistics.h"
#include "config/enums.h"
#include "validate/stage.h"

/* ---- rates ---- */

typedef enum Change { SAME, FASTER, SLOWER, NOT_KNOWN } Change;

/* Computes the confidence interval of ours / theirs from the intervals of both medians
 * (base/statistics.h). */
static Change compare_rates(const Metric *ours, const Metric *theirs, double error, double allow,
                            double *ratio) {
    Interval a, b;
    bool known = interval_of_median(ours->sample, ours->n, error / 2, &a);
    known = interval_of_median(theirs->sample, theirs->n, error / 2, &b) && known;
    const Interval of = interval_ratio(a, b);
    *ratio = of.median;
    if (!known) return NOT_KNOWN;
    if (of.high < 1 - allow) return SLOWER;
    return of.low > 1 + allow ? FASTER : SAME;
}

/* Returns the error probability per metric for which the total error probability of n metrics is at most
 * INTERVAL_ERROR (the Bonferroni correction). */
static double error_of_one(int n) {
    /* the smallest error probability that OUTCOME_ROUNDS samples allow */
    const double most = ldexp(1, 1 - OUTCOME_ROUNDS);
    return fmax(INTERVAL_ERROR / n, 2 * most);
}

int compare_least(int n_rates) { return (int)interval_least(error_of_one(n_rates) / 2); }

/* Counts the rates of a stage that can be compared. */
typedef struct Rates {
    /* few: number of rates with too few samples; absent: number of rates that the other run lacks */
    int judged, few, absent;
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

enum { WHY = 200, MOST_MIB = 64 };
static const double MOST_RATE = 1e18; /* an upper limit on a rate, so that sums of rates are finite */

static bool is_object_of_texts(const json_t *object) {
    const char *name;
    json_t *value;
    bool good = json_is_object(object);
    json_object_foreach((json_t *)object, name, value) good &= json_is_string(value);
    return good;
}

static bool is_array_of_rates(const json_t *samples) {
    bool good = json_is_array(samples);
    for (size_t i = 0; i < json_array_size(samples); i++) {
        const double x = json_number_value(json_array_get(samples, i)); /* 0 if the sample is not a number */
        good &= x > 0 && x <= MOST_RATE;
    }
    return good;
}

/* Checks the metrics of a stage. `why` stays empty if the metrics are valid. */
static void check_metrics(const json_t *metrics, size_t stage, char why[WHY]) {
    if (!json_is_array(metrics)) snprintf(why, WHY, "stages[%zu].metrics is not an array", stage);
    for (size_t i = 0; i < json_array_size(metrics) && !*why; i++) {
        const json_t *m = json_array_get(metrics, i);
        if (!json_is_string(json_object_get(m, "name")))
            snprintf(why, WHY, "stages[%zu].metrics[%zu].name is not a string", stage, i);
        else if (!is_array_of_rates(json_object_get(m, "samples")))
            snprintf(why, WHY,
                     "stages[%zu].metrics[%zu].samples is not an array of positive numbers up to %g", stage,
                     i, MOST_RATE);
    }
}

static void check_stage(const json_t *stages, size_t i, char why[WHY]) {
    const json_t *stage = json_array_get(stages, i), *metrics = json_object_get(stage, "metrics"),
                 *fingerprint = json_object_get(stage, "fingerprint"),
                 *transport = json_object_get(stage, "transport");
    if (!json_is_string(json_object_get(stage, "name")))
        snprintf(why, WHY, "stages[%zu].name is not a string", i);
    else if (transport && !json_is_string(transport))
        snprintf(why, WHY, "stages[%zu].transport is not a string", i);
    else if (fingerprint && !is_object_of_texts(fingerprint))
        snprintf(why, WHY, "stages[%zu].fingerprint is not an object of strings", i);
    else if (metrics)
        check_metrics(metrics, i, why);
}

static void check_members(const json_t *report, StageVerdict *verdict, char why[WHY]) {
    const json_t *stages = json_object_get(report, "stages"), *device = json_object_get(report, "device");
    const char *said = json_string_value(json_object_get(report, "verdict"));
    int v = 0;
    while (v < VALIDATE_VERDICTS && (!said || strcmp(said, STAGE_VERDICTS[v]))) v++;
    if (!report)
        snprintf(why, WHY, "it is not valid JSON");
    else if (json_integer_value(json_object_get(report, "schema")) != VALIDATE_SCHEMA)
        snprintf(why, WHY, "schema is not %d", (int)VALIDATE_SCHEMA);
    else if (v == VALIDATE_VERDICTS)
        snprintf(why, WHY, "verdict is not one of %s, %s, %s, %s and %s", STAGE_VERDICTS[0],
                 STAGE_VERDICTS[1], STAGE_VERDICTS[2], STAGE_VERDICTS[3], STAGE_VERDICTS[4]);
    else if (json_integer_value(json_object_get(report, "ranks")) < 1)
        snprintf(why, WHY, "ranks is not a positive whole number");
    else if (device && !json_is_string(device))
        snprintf(why, WHY, "device is not a string");
    else if (!json_is_array(stages))
        snprintf(why, WHY, "stages is not an array");
    for (size_t i = 0; i < json_array_size(stages) && !*why; i++) check_stage(stages, i, why);
    *verdict = (StageVerdict)v;
}

static Err check_good(const json_t *report, const char *path) {
    char why[WHY] = "";
    StageVerdict verdict;
    check_members(report, &verdict, why);
    if (*why)
        return err_user("'%s' is not a report of validate with schema %d, because %s: give a file written "
                        "by 'isotron validate --json'",
                        path, (int)VALIDATE_SCHEMA, why);
    if (verdict > VALIDATE_INCONCLUSIVE)
        return err_user("'%s' has the verdict %s: give the report of a run that passed", path,
                        STAGE_VERDICTS[verdict]);
    return ERR_OK;
}

static Err read_report(const char *path, Str *text) {
    const int64_t size = file_size(path);
    if (size > (int64_t)MOST_MIB << 20)
        return err_user("'%s' is larger than %d MiB, which is too large for a report: give a file written "
                        "by 'isotron validate --json'",
                        path, (int)MOST_MIB);
    return file_read(path, text);
}

Err compare_open_good(const char *path, json_t **out) {
    Str text = {0};
    *out = NULL;
    ERR_RETURN(read_report(path, &text));
    json_t *all = json_loadb(text.s, text.len, 0, NULL);
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
    for (size_t i = 0; i < json_array_size(samples) && m.n < OUTCOME_SAMPLES; i++)
        m.sample[m.n++] = json_number_value(json_array_get(samples, i));
    return m;
}

static Rates compare_speed(const Validation *a, Outcome *r, const json_t *good) {
    const bool gpu = a->options->config->device == ON_CUDA;
    Rates rates = {.judged = 0};
    for (int i = 0; i < r->n_metrics; i++) {
        const json_t *row = find_named(json_object_get(good, "metrics"), r->metric[i].name);
        const Metric theirs = metric_of(row);
        double ratio;
        if (judge_rate(r, i, &theirs, a->options->allow, &rates, &ratio) != SLOWER) continue;
        outcome_add(r, gpu ? VALIDATE_DEGRADED : VALIDATE_INCONCLUSIVE, r->metric[i].name,
                    "%.3g %s, %.0f %% less than %.3g in the last good run%s", metric_median(&r->metric[i]),
                    r->metric[i].unit, 100 * (1 - ratio), metric_median(&theirs),
                    gpu ? "" : "; a CPU may be busy with other work");
    }
    return rates;
}

/* Returns the kind of an Outcome's transport, or NULL if there is none. */
static const char *kind_of(const char *transport) {
    if (!transport || !*transport) return NULL;
    return stage_is_nccl(transport) ? "with NCCL" : "through host memory";
}

/* Checks that the properties of the machine that affect rates are equal. Reports written by earlier versions
 * lack the members `device` and `transport`. */
static bool may_compare_rates(const Validation *a, const Outcome *r, const json_t *good, char why[WHY]) {
    const char *device = DeviceOption_spellings[a->options->config->device],
               *their_device = json_string_value(json_object_get(a->good, "device")),
               *transport = kind_of(r->transport),
               *theirs = kind_of(json_string_value(json_object_get(good, "transport")));
    const json_int_t ranks = json_integer_value(json_object_get(a->good, "ranks"));
    *why = 0;
    if (ranks != a->ranks)
        snprintf(why, WHY, "the good run had %s, but this run has %d", amount(ranks, "rank").s, a->ranks);
    else if (their_device && strcmp(their_device, device))
        snprintf(why, WHY, "the good run had --device %.40s, but this run has %s", their_device, device);
    else if (transport && theirs && strcmp(transport, theirs))
        snprintf(why, WHY, "the ranks communicated %s in the good run, but %s in this run", theirs,
                 transport);
    return !*why;
}

static void changed(const Validation *a, Outcome *r, const char *name, const char *now, const char *was) {
    const bool allowed = a->options->allow_changes;
    outcome_add(r, allowed ? VALIDATE_PASS : VALIDATE_DEGRADED, name,
                "it is '%.150s', but was '%.150s' in the last good run", now, was);
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

static void compare_facts(const Validation *a, Outcome *r, const json_t *good) {
    const json_t *facts = json_object_get(good, "fingerprint");
    for (int i = 0; i < r->n_facts; i++) {
        const char *was = json_string_value(json_object_get(facts, r->fact[i].name));
        if (r->fact[i].lasting && (!was || strcmp(was, r->fact[i].value)))
            changed(a, r, r->fact[i].name, r->fact[i].value, was ? was : "none");
    }
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)facts, name, value) {
        if (!find_fact(r, name)) changed(a, r, name, "none", json_string_value(value));
    }
}

void compare_with_good(const Validation *a, ValidateRow *row) {
    Outcome *r = row->a;
    const json_t *good = find_named(json_object_get(a->good, "stages"), row->name);
    const bool marked = has_fingerprint(r), comparable = marked && json_object_get(good, "fingerprint");
    if (!a->good) return;
    if (comparable) compare_facts(a, r, good);
    if (marked && !comparable)
        outcome_limit(r, "%s: the fingerprint, because the good run has none", row->name);
    Rates rates = {.judged = 0};
    char why[WHY];
    if (may_compare_rates(a, r, good, why))
        rates = compare_speed(a, r, good);
    else if (r->n_metrics)
        outcome_limit(r, "%s: rates, because %s", row->name, why);
    limit_rates(r, row->name, rates.first_absent, rates.absent, "which the good run does not have");
    limit_rates(r, row->name, rates.first_few, rates.few,
                "with too few samples for a comparison with the good run");
    if (!comparable && !rates.judged && (marked || r->n_metrics))
        outcome_add(r, VALIDATE_INCONCLUSIVE, "", "nothing could be compared with the good run");
}

double compare_good_median(const Validation *a, const ValidateRow *row, const char *rate) {
    const json_t *good = find_named(json_object_get(a->good, "stages"), row->name);
    char why[WHY];
    if (!good || !may_compare_rates(a, row->a, good, why)) return 0;
    const Metric m = metric_of(find_named(json_object_get(good, "metrics"), rate));
    return metric_median(&m);
}

/* ---- two libraries ---- */

void compare_libraries(const Validation *a, ValidateRow *row) {
    Outcome *x = row->a, *y = row->b;
    Rates rates = {.judged = 0};
    const bool drifts = row->once && a->options->config->device != ON_CUDA;
    if (row->once)
        outcome_limit(
            y, "%s: a drift of the machine between A and B, because there was time for only one run of each",
            row->name);
    for (int i = 0; i < y->n_metrics; i++) {
        const Metric *theirs = outcome_metric(x, y->metric[i].name);
        double ratio;
        const Change change = judge_rate(y, i, theirs, a->options->allow, &rates, &ratio);
        if (change == SLOWER)
            outcome_add(y, drifts ? VALIDATE_INCONCLUSIVE : VALIDATE_DEGRADED, "NCCL B",
                        "B is %.0f %% slower than A at %s: %.3g %s, not %.3g", 100 * (1 - ratio),
                        y->metric[i].name, metric_median(&y->metric[i]), y->metric[i].unit,
                        metric_median(theirs));
        if (change == FASTER)
            outcome_add(y, VALIDATE_PASS, "NCCL B", "B is %.0f %% faster than A at %s", 100 * (ratio - 1),
                        y->metric[i].name);
    }
    limit_rates(y, row->name, rates.first_absent, rates.absent, "which A does not have");
    limit_rates(y, row->name, rates.first_few, rates.few,
                "with too few samples for a comparison of B with A");
    if (y->n_metrics && !rates.judged)
        outcome_add(y, VALIDATE_INCONCLUSIVE, "", "no rate of B could be compared with A");
    for (int i = 0; i < y->n_hashes; i++)
        for (int k = 0; k < x->n_hashes; k++)
            if (!strcmp(x->hash[k].name, y->hash[i].name) && x->hash[k].hash != y->hash[i].hash)
                outcome_add(y, VALIDATE_PASS, "NCCL B", "B differs bitwise from A in %s (order of summation)",
                            y->hash[i].name);
}

/* ---- classes of rates ---- */

static size_t class_length(const Metric *m) { return strcspn(m->name, " "); }

static bool is_of_class(const Metric *m, const char *name) {
    return class_length(m) == strlen(name) && !strncmp(m->name, name, class_length(m));
}

/* For each round, computes the geometric mean of a class's rates. Only rates that both outcomes contain count.
 * Returns the number of rounds. */
static int mean_rates(const Outcome *r, const Outcome *other, const char *name,
                      double mean[OUTCOME_SAMPLES]) {
    double sum[OUTCOME_SAMPLES] = {0};
    int n = OUTCOME_SAMPLES, rates = 0;
    for (int i = 0; i < r->n_metrics; i++) {
        const Metric *m = &r->metric[i];
        if (!is_of_class(m, name) || !outcome_metric(other, m->name)) continue;
        n = m->n < n ? m->n : n;
        for (int k = 0; k < m->n; k++) sum[k] += log(m->sample[k]);
        rates++;
    }
    for (int k = 0; k < n; k++) mean[k] = exp(sum[k] / rates);
    return rates ? n : 0;
}

/* The first half of the samples is from one turn, and the second half is from another turn. */
static bool interval_over_turns(const double *x, int n, double error, Interval *out) {
    Interval half[2];
    if (!interval_of_median(x, n, error, out)) return false;
    const bool known = interval_of_median(x, n / 2, error, &half[0]);
    for (int i = 0; known && interval_of_median(x + n / 2, n - n / 2, error, &half[1]) && i < 2; i++)
        out->low = fmin(out->low, half[i].low), out->high = fmax(out->high, half[i].high);
    return true;
}

static void compare_class(const ValidateRow *row, double error, RateClass *c) {
    double a[OUTCOME_SAMPLES], b[OUTCOME_SAMPLES];
    const int n = mean_rates(row->a, row->b, c->name, a), m = mean_rates(row->b, row->a, c->name, b);
    Interval x, y;
    c->known = interval_over_turns(a, n, error, &x);
    c->known = interval_over_turns(b, m, error, &y) && c->known;
    c->ratio = interval_ratio(y, x);
}

int compare_classes(const ValidateRow *row, RateClass out[RATE_CLASSES]) {
    int n = 0;
    for (int i = 0; row->b && i < row->b->n_metrics && n < RATE_CLASSES; i++) {
        const Metric *m = &row->b->metric[i];
        int k = 0;
        while (k < n && !is_of_class(m, out[k].name)) k++;
        if (k < n || !outcome_metric(row->a, m->name)) continue;
        out[n] = (RateClass){.known = false};
        snprintf(out[n++].name, sizeof out->name, "%.*s", (int)class_length(m), m->name);
    }
    for (int i = 0; i < n; i++) compare_class(row, INTERVAL_ERROR / (2 * n), &out[i]);
    return n;
}

void compare_class_text(const RateClass *c, Str *out) {
    if (!c->known)
        str_puts(out, "too few samples to compare B with A");
    else if (c->ratio.high < 1)
        str_printf(out, "B is %.3g %% slower than A", 100 * (1 - c->ratio.median));
    else if (c->ratio.low > 1)
        str_printf(out, "B is %.3g %% faster than A", 100 * (c->ratio.median - 1));
    else
        str_printf(out, "equal within %.3g %%", 100 * fmax(1 - c->ratio.low, c->ratio.high - 1));
    str_printf(out, "; B / A = %.3f", c->ratio.median);
    if (c->known) str_printf(out, ", from %.3f to %.3f", c->ratio.low, c->ratio.high);
}
