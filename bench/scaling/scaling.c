#include "bench/scaling/scaling.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/amount.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/statistics.h"
#include "bench/gate/result.h"
#include "bench/head.h"

const char *const SCALING_AXES[] = {"data", "tensor", "context", "pipeline", NULL};

/* The options of this bench. Child processes do not receive these options; each child process receives its own
 * --ranks. */
static const char *const OWN[] = {
    "weak", "strong", "rounds=", "over=", "ranks=", "min-ranks=", "json=", NULL};
#define ALL_MISS 0.05

typedef struct Point {
    /* the last round's result, which provides properties such as the device */
    Result last;
    double *ms, *rate, *exposed; /* [rounds]: time per step; tokens/s; exposed part of a step */
    Interval efficiency;
    bool judged; /* true if the interval is known */
} Point;

typedef struct Scaling {
    const BenchScaling *options;
    Point point[SCALING_POINTS];
    int64_t rounds; /* number of completed rounds */
} Scaling;

int64_t scaling_axis_size(const BenchScaling *o, int64_t ranks) {
    return o->axis == SCALING_DATA ? o->axis_size : o->axis_size * (ranks / o->ranks[0]);
}

int64_t scaling_batch(const BenchScaling *o, int64_t ranks) {
    return o->strong ? o->batch : o->batch * (ranks / o->ranks[0]);
}

/* ---- running ---- */

/* Returns the fraction of a step's time spent waiting for communication, without the pipeline's bubble. */
static double exposed(const Result *of) {
    const json_t *ms = json_object_get(json_object_get(of->json, "family_ms"), "communication"),
                 *step = json_object_get(json_object_get(of->json, "step_ms"), "mean");
    return json_number_value(ms) / json_number_value(step);
}

static Err run_point(Scaling *s, const Measurer *child, int i) {
    static const char *const OPTION[] = {[SCALING_TENSOR] = "--tensor-model-parallel-size",
                                         [SCALING_CONTEXT] = "--context-parallel-size",
                                         [SCALING_PIPELINE] = "--pipeline-model-parallel-size"};
    const BenchScaling *o = s->options;
    Point *p = &s->point[i];
    char ranks[32], batch[32], size[32];
    snprintf(ranks, sizeof ranks, "%lld", (long long)o->ranks[i]);
    snprintf(batch, sizeof batch, "%lld", (long long)scaling_batch(o, o->ranks[i]));
    snprintf(size, sizeof size, "%lld", (long long)scaling_axis_size(o, o->ranks[i]));
    char *words[10] = {"--no-alone", "--ranks", ranks, "--global-batch-size", batch};
    int n = 5;
    if (o->axis != SCALING_DATA) words[n++] = (char *)OPTION[o->axis], words[n++] = size;
    if (o->threads) words[n++] = "--cpu-threads", words[n++] = (char *)o->threads;
    Result result = {.n = 0};
    const Err e = result_measure(child, words, &result);
    if (e.code) {
        result_free(&result);
        return e;
    }
    result_free(&p->last);
    p->last = result;
    const double ms = p->last.rows[0].time,
                 tokens = json_number_value(json_object_get(p->last.json, "tokens"));
    p->ms[s->rounds] = ms, p->rate[s->rounds] = tokens / ms * 1e3;
    p->exposed[s->rounds] = exposed(&p->last);
    printf("round %lld of %lld, %s: %.2f ms\n", (long long)s->rounds + 1, (long long)o->rounds,
           amount(o->ranks[i], "rank").s, ms);
    fflush(stdout);
    return ERR_OK;
}

static Err run_all(Scaling *s, const Measurer *child) {
    const BenchScaling *o = s->options;
    for (; s->rounds < o->rounds; s->rounds++)
        for (int i = 0; i < o->points; i++)
            ERR_RETURN(run_point(s, child, s->rounds % 2 ? o->points - 1 - i : i));
    return ERR_OK;
}

static void judge(Scaling *s) {
    const BenchScaling *o = s->options;
    double *ratio = mem_alloc((size_t)s->rounds * sizeof *ratio);
    for (int i = 0; i < o->points; i++) {
        Point *p = &s->point[i];
        for (int64_t r = 0; r < s->rounds; r++)
            ratio[r] = p->rate[r] / (double)o->ranks[i] / (s->point[0].rate[r] / (double)o->ranks[0]);
        p->judged = interval_of_median(ratio, s->rounds, ALL_MISS / (o->points - 1), &p->efficiency) && i > 0;
    }
    free(ratio);
}

/* ---- report ---- */

static double fact(const Point *p, const char *name) {
    return json_number_value(json_object_get(p->last.json, name));
}

static void print_row(const Scaling *s, int i) {
    const Point *p = &s->point[i];
    const Range ms = range_of(p->ms, s->rounds);
    const double rate = median_of(p->rate, s->rounds);
    printf("%6lld %7.0f %7lld %12.2f %14.0f %14.0f %7.1f%%", (long long)s->options->ranks[i],
           fact(p, "devices"), (long long)scaling_batch(s->options, s->options->ranks[i]), ms.median, rate,
           rate / fact(p, "devices"), 100 * median_of(p->exposed, s->rounds));
    if (i == 0)
        printf(" %10s", "1");
    else
        printf(" %10.3f", p->efficiency.median);
    if (p->judged) printf(" (%.3f to %.3f)", p->efficiency.low, p->efficiency.high);
    printf("\n");
}

static void print(const Scaling *s) {
    const BenchScaling *o = s->options;
    printf("\n%s scaling over %s parallelism, on %s\n", o->strong ? "strong" : "weak", SCALING_AXES[o->axis],
           json_string_value(json_object_get(s->point[o->points - 1].last.json, "device")));
    printf("%6s %7s %7s %12s %14s %14s %8s %10s\n", "ranks", "devices", "batch", "step, ms", "tokens/s",
           "per device", "exposed", "efficiency");
    for (int i = 0; i < o->points; i++) print_row(s, i);
    printf("efficiency: tokens/s per rank, divided by that of the run with %s",
           amount(o->ranks[0], "rank").s);
    const int64_t least = interval_least(ALL_MISS / (o->points - 1));
    if (s->rounds < least)
        printf("; an interval needs --rounds %lld\n", (long long)least);
    else
        printf("; all intervals hold simultaneously with a probability of %g %%\n", 100 * (1 - ALL_MISS));
    for (int i = 0; i < o->points; i++) {
        const char *note = json_string_value(json_object_get(s->point[i].last.json, "note"));
        if (note) printf("note: %s\n", note);
    }
}

static json_t *row_json(const Scaling *s, int i) {
    const Point *p = &s->point[i];
    const Range ms = range_of(p->ms, s->rounds);
    const double rate = median_of(p->rate, s->rounds);
    json_t *samples = json_array(), *row, *efficiency = json_pack("{s:f}", "median", p->efficiency.median);
    for (int64_t r = 0; r < s->rounds; r++) json_array_append_new(samples, json_real(p->ms[r]));
    if (p->judged)
        json_object_update_new(efficiency,
                               json_pack("{s:f, s:f}", "low", p->efficiency.low, "high", p->efficiency.high));
    row = json_pack("{s:I, s:I, s:I, s:{s:f, s:f, s:f}, s:o, s:f, s:f, s:o}", "ranks",
                    (json_int_t)s->options->ranks[i], "devices", (json_int_t)fact(p, "devices"),
                    "global_batch_size", (json_int_t)scaling_batch(s->options, s->options->ranks[i]),
                    "step_ms", "median", ms.median, "min", ms.min, "max", ms.max, "samples_ms", samples,
                    "tokens_per_second", rate, "tokens_per_second_per_device", rate / fact(p, "devices"),
                    "efficiency", efficiency);
    json_object_set_new(row, "exposed", json_real(median_of(p->exposed, s->rounds)));
    static const char *const ALSO[] = {"mfu", "communication", "rank", "note"};
    for (size_t k = 0; k < sizeof ALSO / sizeof *ALSO; k++)
        json_object_set(row, ALSO[k], json_object_get(p->last.json, ALSO[k]));
    return row;
}

static json_t *result_json(const Scaling *s) {
    static const char *const SAME[] = {"provenance", "device", "ranks", "transport",
                                       "threads",    "type",   "model", "options"};
    const BenchScaling *o = s->options;
    json_t *result =
        json_pack("{s:s, s:s, s:s, s:I}", "bench", "scaling", "scaling", o->strong ? "strong" : "weak",
                  "over", SCALING_AXES[o->axis], "rounds", (json_int_t)s->rounds);
    const json_t *last = s->point[o->points - 1].last.json;
    for (size_t k = 0; k < sizeof SAME / sizeof *SAME; k++)
        json_object_set(result, SAME[k], json_object_get(last, SAME[k]));
    json_t *rows = json_array();
    for (int i = 0; i < o->points; i++) json_array_append_new(rows, row_json(s, i));
    json_object_set_new(result, "rows", rows);
    return result;
}

static Err write_json(const Scaling *s, const Err *why) {
    json_t *result = result_json(s);
    if (why->code) json_object_set_new(result, "error", json_string(why->msg));
    const Err e = bench_write(s->options->json, result);
    json_decref(result);
    return e;
}

Err bench_scaling(const BenchScaling *o, char **argv) {
    Scaling s = {.options = o};
    if (o->json) ERR_RETURN(file_check_target(o->json));
    for (int i = 0; i < o->points; i++) {
        s.point[i].ms = mem_zero((size_t)o->rounds, sizeof(double));
        s.point[i].rate = mem_zero((size_t)o->rounds, sizeof(double));
        s.point[i].exposed = mem_zero((size_t)o->rounds, sizeof(double));
    }
    const Measurer child = {"/proc/self/exe", "isotron", "train", argv, OWN};
    Err e = run_all(&s, &child);
    if (s.rounds) { /* after an error, the completed rounds are still reported */
        judge(&s);
        print(&s);
        const Err written = o->json ? write_json(&s, &e) : ERR_OK;
        if (!e.code) e = written;
    }
    for (int i = 0; i < o->points; i++) {
        free(s.point[i].ms), free(s.point[i].rate), free(s.point[i].exposed);
        result_free(&s.point[i].last);
    }
    return e;
}
