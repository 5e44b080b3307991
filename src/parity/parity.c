#include "parity/parity.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/amount.h"
#include "base/mem.h"
#include "comm/comm.h"
#include "run/provenance.h"

/* ---- judging ---- */

/* The arguments that all judging functions take. The exact run and the noisy runs use fp64. In the fp64 lane,
 * `ours` is the exact run. */
typedef struct Judge {
    const Case *of;
    ParityReport *report;
    const Trace *ours, *exact, *const *noisy; /* noisy[report->draws] */
    const Trace *reference;                   /* the reference run, or NULL for the oracle */
    const char *prefix;                       /* prefix for quantity names */
} Judge;

static double bound(const Judge *j, double movement) {
    const ParityReport *r = j->report;
    return 8 * fmax(movement, r->roundoff * sqrt(r->longest_sum));
}

static void judge(const Judge *j, Row *row, const char *name, TensorError error, TensorError moved,
                  int64_t rank) {
    row_add(row, name, error, bound(j, moved.relative), bound(j, moved.elementwise), rank);
}

/* Sets *x to the maximum of *x and y. Unlike fmax, this function propagates NaN. */
static void raise_to(double *x, double y) {
    if (!(y <= *x)) *x = y;
}

static void widen(TensorError *moved, TensorError e) {
    raise_to(&moved->relative, e.relative);
    raise_to(&moved->elementwise, e.elementwise);
}

static Row *new_row(const Judge *j, const char *quantity) {
    char name[32];
    snprintf(name, sizeof name, "%s%s", j->prefix, quantity);
    return report_row(&j->report->rows, name);
}

/* Judges a curve. Each step counts as a tensor with one value, and its error is relative to this value. */
static void judge_curve(const Judge *j, const char *quantity, size_t member) {
    const Golden *g = j->of->golden;
    Row *row = NULL;
    TensorError moved = {0};
    for (int64_t i = 0; i < g->n_steps; i++) {
#define AT(steps) ((const double *)((const char *)&(steps)[i] + member))
        const double *oracle = AT(j->reference ? j->reference->steps : g->steps), *ours = AT(j->ours->steps),
                     *exact = AT(j->exact->steps), *noisy[PARITY_DRAWS];
        for (int k = 0; k < j->report->draws; k++) noisy[k] = AT(j->noisy[k]->steps);
#undef AT
        char name[32];
        snprintf(name, sizeof name, "step %lld", (long long)i + 1);
        Scale scale = {0};
        scale_add(&scale, oracle, 1);
        if (!row) row = new_row(j, quantity);
        for (int k = 0; k < j->report->draws; k++) widen(&moved, tensor_error(noisy[k], exact, 1, 1, &scale));
        judge(j, row, name, tensor_error(ours, oracle, 1, 1, &scale), moved, NO_RANK);
    }
}

static bool all_finite(const double *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(x[i])) return false;
    return true;
}

/* Returns the oracle's tensor as doubles, or an error if the shape is wrong or a value is not finite. */
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

/* Judges a quantity that consists of tensors. `member` is the offset of `gradients` or `parameters` in Trace. */
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
        if (j->reference)
            oracle[i] = AT(j->reference);
        else
            e = oracle_tensor(j->of->golden, name, t->ndim, t->dim, &oracle[i]);
        free(name);
        if (!e.code) scale_add(&scale, oracle[i], hf_count(t));
    }
    Row *row = e.code ? NULL : new_row(j, quantity);
    for (int64_t i = 0; row && i < map->count; i++) {
        const HfTensor *t = &map->tensors[i];
        if (!oracle[i]) continue;
        int64_t n = hf_count(t), width = t->dim[t->ndim - 1];
        TensorError moved = {0};
        for (int k = 0; k < j->report->draws; k++)
            widen(&moved, tensor_error(AT(j->noisy[k]), AT(j->exact), n, width, &scale));
        const TensorError error = tensor_error(AT(j->ours), oracle[i], n, width, &scale);
        judge(j, row, t->name, error, moved, (int64_t)j->ours->ranks[j->of->at[i] + error.worst]);
    }
#undef AT
    free(oracle);
    return e;
}

static Err judge_logits(const Judge *j) {
    const Golden *g = j->of->golden;
    if (!j->ours->has_logits || j->reference)
        return ERR_OK; /* the case has no logits, or no rank has the full logits */
    int64_t vocab = j->of->vocab, n = g->samples * g->all.shape.positions * vocab;
    const double *oracle;
    ERR_RETURN(
        oracle_tensor(g, "logits", 3, (int64_t[]){g->samples, g->all.shape.positions, vocab}, &oracle));
    Scale scale = {0};
    scale_add(&scale, oracle, n);
    TensorError moved = {0};
    for (int k = 0; k < j->report->draws; k++)
        widen(&moved, tensor_error(j->noisy[k]->logits, j->exact->logits, n, vocab, &scale));
    judge(j, new_row(j, "logits"), "step 1", tensor_error(j->ours->logits, oracle, n, vocab, &scale), moved,
          0);
    return ERR_OK;
}

static Err judge_all(const Judge *j) {
    judge_curve(j, "loss", offsetof(GoldenStep, loss));
    for (int i = 0; i < j->of->golden->n_losses; i++)
        judge_curve(j, j->of->golden->loss_names[i],
                    offsetof(GoldenStep, named) + (size_t)i * sizeof(double));
    judge_curve(j, "grad norm", offsetof(GoldenStep, grad_norm));
    judge_curve(j, "clip coefficient", offsetof(GoldenStep, clip));
    judge_curve(j, "learning rate", offsetof(GoldenStep, lr));
    ERR_RETURN(judge_logits(j));
    ERR_RETURN(judge_tensors(j, "gradient of step 1", "grad", offsetof(Trace, gradients)));
    return judge_tensors(j, "parameter at the end", "param", offsetof(Trace, parameters));
}

static double longest_sum(const Config *c) {
    double longest = fmax((double)c->hidden_size, (double)c->derived.ffn_hidden_size);
    longest = fmax(longest, (double)c->derived.vocab_size);
    return fmax(longest, (double)(c->derived.global_batch_size * c->seq_length));
}

ParityReport parity_report(const Case *c, Lane lane) {
    return (ParityReport){.roundoff = dtype_roundoff(lane == LANE_FP32 ? F32 : F64),
                          .longest_sum = longest_sum(&c->config),
                          .is_heard = true};
}

Noise parity_noise(const ParityReport *r, int draw) {
    return (Noise){draw, r->roundoff, r->roundoff * sqrt(r->longest_sum)};
}

Err parity_judge(const Case *c, const Trace *ours, const Trace *exact, Trace *const *noisy,
                 const Trace *reference, ParityReport *report) {
    const Trace *drawn[PARITY_DRAWS];
    for (int k = 0; k < report->draws; k++) drawn[k] = noisy[k];
    return judge_all(&(Judge){c, report, ours, exact, drawn, reference, ""});
}

typedef struct Runs {
    Trace *ours, *exact, *noisy[PARITY_DRAWS];
} Runs;

/* Judges `ours` against the oracle. Adds noisy runs until all rows pass or the maximum is reached. */
static Err judge_by_noise(const Case *of, const Trace *ours, Runs *r, const char *prefix,
                          ParityReport *report) {
    bool pass = false;
    while (!pass && report->draws < PARITY_DRAWS) {
        ERR_RETURN(case_run_alone(of, LANE_FP64, parity_noise(report, report->draws), NULL,
                                  r->noisy[report->draws]));
        report->draws++;
        report->rows.n = 0;
        const Trace *drawn[PARITY_DRAWS];
        for (int k = 0; k < report->draws; k++) drawn[k] = r->noisy[k];
        ERR_RETURN(judge_all(&(Judge){of, report, ours, r->exact, drawn, NULL, prefix}));
        pass = report_passes(&report->rows);
    }
    return ERR_OK;
}

static Err run_all(const Case *of, const Config *c, Runs *r, ParityReport *report) {
    const Noise none = {.draw = NO_NOISE};
    const bool low = precision_is_low(c);
    if (!low) {
        ERR_RETURN(case_run(of, c, none, NULL, r->ours));
        report->is_heard = r->ours->has_steps;
    }
    if (report->is_heard) {
        ERR_RETURN(case_run_alone(of, LANE_FP64, none, NULL, r->exact));
        ERR_RETURN(judge_by_noise(of, low ? r->exact : r->ours, r, low ? "fp64 " : "", report));
    }
    const int before = report->rows.n;
    if (low && (comm_processes() > 1 || report_passes(&report->rows))) { /* a failure in fp64 is final */
        ERR_RETURN(precision_judge(of, c, NULL, &report->rows, &report->precision));
        report->is_heard = report->rows.n > before;
    }
    report->pass = report_passes(&report->rows);
    report->is_weak = report_is_weak(&report->rows);
    return ERR_OK;
}

Err parity_run(const Config *c, const Golden *g, ParityReport *report) {
    Case of;
    Err e = case_open(g, c, &of);
    if (!e.code) e = trainer_check(c);
    if (!e.code) {
        Runs r = {trace_new(&of), trace_new(&of), {0}};
        for (int k = 0; k < PARITY_DRAWS; k++) r.noisy[k] = trace_new(&of);
        *report = parity_report(&of, precision_is_low(c) ? LANE_FP64 : c->lane);
        e = run_all(&of, c, &r, report);
        trace_free(r.ours), trace_free(r.exact);
        for (int k = 0; k < PARITY_DRAWS; k++) trace_free(r.noisy[k]);
    }
    case_close(&of);
    return e;
}

/* ---- reports ---- */

static const char *lane_name(const Config *c) { return Lane_spellings[c->lane]; }

void parity_print(const ParityReport *r, const char *case_name, const Config *c, int64_t threads, Str *out) {
    const Provenance p = provenance_read();
    char number[24];
    snprintf(number, sizeof number, "%lld", (long long)provenance_threads(&p, threads));
    str_printf(out, "parity of %s, lane %s, micro-batch-size %lld\n", case_name, lane_name(c),
               (long long)c->micro_batch_size);
    report_print(&r->rows, out);
    str_printf(
        out,
        "%sbound = 8 u max(kappa, sqrt(K)), u = %.3g, K = %.0f; kappa of a tensor: its largest movement, "
        "divided by u, in %s with normal noise: u on the weights, u sqrt(K) on the gradients\n",
        r->precision.draws ? "fp64 rows: " : "", r->roundoff, r->longest_sum, amount(r->draws, "fp64 run").s);
    if (r->precision.draws)
        str_printf(out,
                   "other rows: x is this run, y fp64 and z fp64 with the lane's storage, for %s of weights "
                   "times 1 + %.3g xi. R = median |x - y| / median |z - y|, element = max of min |x - y| / "
                   "rms of its row in z - y, scale = component of x - z along y. power = the smallest "
                   "relative error of scale that fails, and its limit\n",
                   amount(r->precision.draws, "draw").s, r->precision.dither);
    provenance_print(&p, number, out);
    if (r->is_weak)
        str_puts(out, "All results are within their bounds, but an error as large as the power would be too. "
                      "Use a case with more tokens per step or larger sizes, or a finer precision.\n");
    str_printf(out, "verdict: %s\n", r->pass ? "pass" : r->is_weak ? "inconclusive" : "FAIL");
}

bool parity_is_report(const char *path) {
    static const char *const HEADS[] = {PARITY_JSON_HEAD, SWEEP_JSON_HEAD, SWEEP_JUNIT_HEAD, SWEEP_HTML_HEAD};
    char begin[256];
    FILE *f = fopen(path, "rb");
    const size_t n = f ? fread(begin, 1, sizeof begin, f) : 0;
    if (f) fclose(f);
    for (size_t i = 0; i < sizeof HEADS / sizeof *HEADS; i++)
        if (n >= strlen(HEADS[i]) && !memcmp(begin, HEADS[i], strlen(HEADS[i]))) return true;
    return false;
}

void parity_json(const ParityReport *r, const char *case_name, const Config *c, int64_t threads, Str *out) {
    const Provenance p = provenance_read();
    json_t *bound = json_pack("{s:s, s:f, s:f}", "formula", "8 u max(kappa, sqrt(K))", "u", r->roundoff, "K",
                              r->longest_sum);
    compare_json_write(json_pack("{s:i, s:o, s:I, s:o, s:s, s:I, s:o, s:i, s:o, s:b, s:b}", "schema", 2,
                                 "provenance", provenance_json(), "threads",
                                 (json_int_t)provenance_threads(&p, threads), "case",
                                 compare_json_text(case_name), "lane", lane_name(c), "micro_batch_size",
                                 (json_int_t)c->micro_batch_size, "bound", bound, "draws", r->precision.draws,
                                 "rows", report_json(&r->rows), "inconclusive", r->is_weak, "pass", r->pass),
                       out);
}
