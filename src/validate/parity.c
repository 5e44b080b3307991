#include "validate/parity.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "tensor/fp8.h"

/* ---- judging ---- */

/* What every comparison needs. Exact and noisy runs are in fp64; in that lane ours is the exact one. */
typedef struct Judge {
    const Case *of;
    ParityReport *report;
    const Trace *ours, *exact, *const *noisy; /* noisy[report->draws] */
} Judge;

static double bound(const Judge *j, double movement) {
    const ParityReport *r = j->report;
    return 8 * fmax(movement, r->roundoff * sqrt(r->longest_sum));
}

static void judge(const Judge *j, Row *row, const char *name, TensorError error, TensorError moved) {
    row_add(row, name, error, bound(j, moved.relative), bound(j, moved.elementwise));
}

/* Not fmax: a value that is not a number stays. */
static void raise_to(double *x, double y) {
    if (!(y <= *x)) *x = y;
}

static void widen(TensorError *moved, TensorError e) {
    raise_to(&moved->relative, e.relative);
    raise_to(&moved->elementwise, e.elementwise);
}

static Row *new_row(const Judge *j, const char *quantity) {
    Row *row = &j->report->row[j->report->rows++];
    *row = (Row){0};
    snprintf(row->quantity, sizeof row->quantity, "%s", quantity);
    return row;
}

/* A curve is one tensor of one value per step, each measured against itself. */
static void judge_curve(const Judge *j, const char *quantity, size_t member) {
    const Golden *g = j->of->golden;
    Row *row = NULL;
    TensorError moved = {0};
    for (int64_t i = 0; i < g->n_steps; i++) {
#define AT(steps) ((const double *)((const char *)&(steps)[i] + member))
        const double *oracle = AT(g->steps), *ours = AT(j->ours->steps), *exact = AT(j->exact->steps),
                     *noisy[PARITY_DRAWS];
        for (int k = 0; k < j->report->draws; k++) noisy[k] = AT(j->noisy[k]->steps);
#undef AT
        if (isnan(*oracle)) continue;
        char name[32];
        snprintf(name, sizeof name, "step %lld", (long long)i + 1);
        Scale scale = {0};
        scale_add(&scale, oracle, 1);
        if (!row) row = new_row(j, quantity);
        for (int k = 0; k < j->report->draws; k++) widen(&moved, tensor_error(noisy[k], exact, 1, 1, &scale));
        judge(j, row, name, tensor_error(ours, oracle, 1, 1, &scale), moved);
    }
}

static bool all_finite(const double *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(x[i])) return false;
    return true;
}

/* The oracle's tensor as doubles, if it has the shape and finite values. */
static Err oracle_tensor(const Golden *g, const char *name, int ndim, const int64_t *dim,
                         const double **out) {
    const Tensor *x = safetensors_find(g->oracle, name), want = tensor_make(NULL, F64, ndim, dim);
    char have[96], need[96];
    if (!x) return err_user("oracle.safetensors has no tensor '%s'", name);
    if (x->dtype != F64 || !tensor_same_shape(x, &want))
        return err_user("oracle.safetensors: '%s' is %s; %s is needed", name,
                        tensor_describe(x, have, sizeof have), tensor_describe(&want, need, sizeof need));
    if (!all_finite(x->data, tensor_count(x)))
        return err_user("oracle.safetensors: '%s' has values that are not finite", name);
    *out = x->data;
    return ERR_OK;
}

/* member: of the Trace, its `gradients` or `parameters`. */
static Err judge_tensors(const Judge *j, const char *quantity, const char *prefix, size_t member) {
    const HfMap *map = &j->of->map;
    const double **oracle = mem_zero((size_t)map->count, sizeof *oracle);
#define AT(trace) (*(double *const *)((const char *)(trace) + member) + j->of->at[i])
    Scale scale = {0};
    Err e = ERR_OK;
    const bool trained_only = !strcmp(prefix, "grad"); /* a buffer has no gradient */
    for (int64_t i = 0; i < map->count && !e.code; i++) {
        const HfTensor *t = &map->tensors[i];
        if (trained_only && t->param->spec.flags & PARAM_BUFFER) continue;
        char *name = mem_printf("%s/%s", prefix, t->name);
        e = oracle_tensor(j->of->golden, name, t->ndim, t->dim, &oracle[i]);
        free(name);
        if (!e.code) scale_add(&scale, oracle[i], case_count(t));
    }
    Row *row = e.code ? NULL : new_row(j, quantity);
    for (int64_t i = 0; row && i < map->count; i++) {
        const HfTensor *t = &map->tensors[i];
        if (!oracle[i]) continue;
        int64_t n = case_count(t), width = t->dim[t->ndim - 1];
        TensorError moved = {0};
        for (int k = 0; k < j->report->draws; k++)
            widen(&moved, tensor_error(AT(j->noisy[k]), AT(j->exact), n, width, &scale));
        judge(j, row, t->name, tensor_error(AT(j->ours), oracle[i], n, width, &scale), moved);
    }
#undef AT
    free(oracle);
    return e;
}

static Err judge_logits(const Judge *j) {
    const Golden *g = j->of->golden;
    if (!j->ours->has_logits) return ERR_OK; /* the case has none, or no rank has whole ones */
    int64_t vocab = j->of->vocab, n = g->samples * g->seq * vocab;
    const double *oracle;
    ERR_RETURN(oracle_tensor(g, "logits", 3, (int64_t[]){g->samples, g->seq, vocab}, &oracle));
    Scale scale = {0};
    scale_add(&scale, oracle, n);
    TensorError moved = {0};
    for (int k = 0; k < j->report->draws; k++)
        widen(&moved, tensor_error(j->noisy[k]->logits, j->exact->logits, n, vocab, &scale));
    judge(j, new_row(j, "logits"), "logits of step 1",
          tensor_error(j->ours->logits, oracle, n, vocab, &scale), moved);
    return ERR_OK;
}

static Err judge_all(const Judge *j) {
    ParityReport *r = j->report;
    r->rows = 0;
    judge_curve(j, "loss", offsetof(GoldenStep, loss));
    judge_curve(j, "grad norm", offsetof(GoldenStep, grad_norm));
    judge_curve(j, "clip coefficient", offsetof(GoldenStep, clip));
    judge_curve(j, "learning rate", offsetof(GoldenStep, lr));
    ERR_RETURN(judge_logits(j));
    ERR_RETURN(judge_tensors(j, "gradient of step 1", "grad", offsetof(Trace, gradients)));
    ERR_RETURN(judge_tensors(j, "parameter at the end", "param", offsetof(Trace, parameters)));
    r->pass = true;
    for (int i = 0; i < r->rows; i++) r->pass &= r->row[i].pass;
    return ERR_OK;
}

/* Of the coarser operand; the lanes that take none promise more. */
static double operand_roundoff(const Config *c) {
    if (c->fp8_format == FP8_NONE || c->lane == LANE_FP64 || c->lane == LANE_EXACT) return 0;
    return fp8_roundoff(c->fp8_format == FP8_HYBRID ? E5M2 : E4M3);
}

/* With 16-bit storage sums run in fp32 and only stored tensors are rounded, and FP8 operands: the terms that
 * add up are the stages of the network, some ten to a layer. */
static double longest_sum(const Config *c, const Derived *d) {
    if (c->lane == LANE_BF16 || c->lane == LANE_FP16 || operand_roundoff(c) > 0)
        return 10.0 * (double)c->num_layers;
    double longest = fmax((double)c->hidden_size, (double)d->ffn_hidden_size);
    longest = fmax(longest, (double)d->vocab_size);
    return fmax(longest, (double)(d->global_batch_size * c->seq_length));
}

/* The exact lane rounds to a grid: values about 1 by half of its step, smaller ones by more. */
static double lane_roundoff(Lane lane) {
    static const DType TYPE[] = {[LANE_FP32] = F32, [LANE_FP64] = F64, [LANE_BF16] = BF16, [LANE_FP16] = F16};
    return lane == LANE_EXACT ? ldexp(1, -EXACT_GRID_BITS) : dtype_roundoff(TYPE[lane]);
}

ParityReport parity_report(const Case *c, Lane lane) {
    Config config = c->config;
    config.lane = lane;
    const double roundoff = fmax(lane_roundoff(lane), operand_roundoff(&config));
    return (ParityReport){.roundoff = roundoff, .longest_sum = longest_sum(&config, &c->derived)};
}

Noise parity_noise(const ParityReport *r, int draw) { return (Noise){draw, r->roundoff, r->longest_sum}; }

Err parity_judge(const Case *c, const Trace *ours, const Trace *exact, Trace *const *noisy,
                 ParityReport *report) {
    const Trace *drawn[PARITY_DRAWS];
    for (int k = 0; k < report->draws; k++) drawn[k] = noisy[k];
    return judge_all(&(Judge){c, report, ours, exact, drawn});
}

static Err run_all(const Case *of, const Config *c, const Derived *d, Trace *ours, Trace *exact,
                   Trace **noisy, ParityReport *report) {
    const Noise none = {.draw = NO_NOISE};
    const bool is_exact =
        c->lane == LANE_FP64 && config_ranks(c) == 1; /* ranks have no part in the bound either */
    ERR_RETURN(case_run(of, c, d, none, NULL, ours));
    report->is_heard = ours->has_steps;
    if (!report->is_heard) return ERR_OK;
    if (!is_exact) ERR_RETURN(case_run_alone(of, LANE_FP64, none, exact));
    while (!report->pass && report->draws < PARITY_DRAWS) {
        ERR_RETURN(case_run_alone(of, LANE_FP64, parity_noise(report, report->draws), noisy[report->draws]));
        report->draws++;
        ERR_RETURN(parity_judge(of, ours, is_exact ? ours : exact, noisy, report));
    }
    return ERR_OK;
}

Err parity_run(const Config *c, const Derived *d, const Golden *g, ParityReport *report) {
    Case of;
    Err e = case_open(g, c, d, &of);
    if (!e.code) e = run_check(c, d);
    if (!e.code) {
        Trace *ours = trace_new(&of), *exact = trace_new(&of), *noisy[PARITY_DRAWS];
        for (int k = 0; k < PARITY_DRAWS; k++) noisy[k] = trace_new(&of);
        *report = parity_report(&of, c->lane);
        e = run_all(&of, c, d, ours, exact, noisy, report);
        trace_free(ours), trace_free(exact);
        for (int k = 0; k < PARITY_DRAWS; k++) trace_free(noisy[k]);
    }
    case_close(&of);
    return e;
}

/* ---- reports ---- */

static const char *lane_name(const Config *c) { return Lane_spellings[c->lane]; }

void parity_print(const ParityReport *r, const char *case_name, const Config *c, Str *out) {
    str_printf(out, "parity of %s, lane %s, micro-batch-size %lld\n", case_name, lane_name(c),
               (long long)c->micro_batch_size);
    str_printf(out, "%-20s %7s %11s %11s %11s %11s  %-4s  %s\n", "quantity", "tensors", "relative", "bound",
               "element", "bound", "", "worst tensor, index and rank");
    for (int i = 0; i < r->rows; i++) {
        const Row *w = &r->row[i];
        str_printf(out, "%-20s %7lld %11.3e %11.3e %11.3e %11.3e  %-4s  %s[%lld] rank 0\n", w->quantity,
                   (long long)w->tensors, w->error.relative, w->bound, w->error.elementwise,
                   w->elementwise_bound, w->pass ? "pass" : "FAIL", w->worst, (long long)w->error.worst);
    }
    str_printf(
        out,
        "bound = 8 u max(kappa, sqrt(K)), u = %.3g, K = %.0f; kappa of each tensor: its largest movement "
        "over u in %d fp64 runs with u "
        "times normal noise on the weights and u sqrt(K) on the gradients\n",
        r->roundoff, r->longest_sum, r->draws);
    str_printf(out, "verdict: %s\n", r->pass ? "pass" : "FAIL");
}

void parity_json(const ParityReport *r, const char *case_name, const Config *c, Str *out) {
    str_puts(out, "{\n  \"schema\": 1,\n  \"case\": ");
    compare_json_text(out, case_name);
    str_printf(out, ",\n  \"lane\": \"%s\",\n  \"micro_batch_size\": %lld,\n", lane_name(c),
               (long long)c->micro_batch_size);
    str_printf(out,
               "  \"bound\": {\"formula\": \"8 u max(kappa, sqrt(K))\", \"u\": %.9g, \"K\": %.0f},\n  "
               "\"rows\": [\n",
               r->roundoff, r->longest_sum);
    for (int i = 0; i < r->rows; i++) {
        const Row *w = &r->row[i];
        str_printf(out, "    {\"quantity\": \"%s\", \"tensors\": %lld, ", w->quantity, (long long)w->tensors);
        compare_json_number(out, "relative", w->error.relative);
        compare_json_number(out, "relative_bound", w->bound);
        compare_json_number(out, "elementwise", w->error.elementwise);
        compare_json_number(out, "elementwise_bound", w->elementwise_bound);
        str_printf(out, "\"worst\": \"%s\", \"index\": %lld, \"rank\": 0, \"pass\": %s}%s\n", w->worst,
                   (long long)w->error.worst, w->pass ? "true" : "false", i + 1 < r->rows ? "," : "");
    }
    str_printf(out, "  ],\n  \"pass\": %s\n}\n", r->pass ? "true" : "false");
}
