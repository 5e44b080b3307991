#include "validate/parity.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/philox.h"
#include "ckpt/hf.h"
#include "train/run.h"

/* A dynamic scale would skip steps until it has come down from 2^32, which is no parity with an oracle that
 * skips none. */
static const double DEFAULT_LOSS_SCALE = 1024;

/* ---- one run of the case ---- */

/* What a run leaves behind to be compared, everything in double and in the oracle's names and layouts. */
typedef struct Trace {
    GoldenStep *steps;                /* [n_steps] */
    double **gradients, **parameters; /* [tensors] each, in the order of the HF map */
    double *logits;                   /* [samples, seq, vocab] of step 1; NULL unless the case has them */
} Trace;

typedef struct Parity {
    const Config *config;
    const Derived *derived;
    const Golden *golden;
    HfMap map;
    double injected, longest_sum;
} Parity;

static int64_t count_of(const HfTensor *t) { return t->dim[0] * (t->ndim == 2 ? t->dim[1] : 1); }

static double **gather_all(const HfMap *map, const Registry *r, const void *flat, double scale) {
    double **out = mem_zero((size_t)map->count, sizeof *out);
    for (int64_t i = 0; i < map->count; i++) {
        int64_t n = count_of(&map->tensors[i]);
        out[i] = mem_alloc((size_t)n * sizeof **out);
        hf_gather(&map->tensors[i], flat, r->precise, out[i], F64);
        for (int64_t j = 0; j < n; j++) out[i][j] *= scale;
    }
    return out;
}

/* x * (1 + size * xi) or x + size * rms(x) * xi for the logical elements of a parameter-shaped F64 tensor. An
 * exact zero is a sum without terms (a token that does not occur): it stays. */
static void perturb(const Param *p, Tensor *t, const char *site, double size, bool relative) {
    double *x = t->data, rms = 0;
    int64_t n = param_logical_count(p);
    for (int64_t i = 0; i < n; i++) rms += x[i] * x[i];
    rms = sqrt(rms / (double)n);
    uint64_t key = hash64(p->spec.name, strlen(p->spec.name), hash_name(site));
    for (int64_t i = 0; i < n; i++)
        if (x[i] != 0) x[i] += size * (relative ? x[i] : rms) * philox_normal(0, key, (uint64_t)i);
}

static void keep_logits(const Parity *p, Run *run, const Batch *b, int64_t first, double *out) {
    BatchTensors tensors;
    batch_tensors(b, false, &tensors);
    tape_begin(run->tape, false);
    Tensor *y = gpt_forward(run->tape, run->model, &tensors.input);
    int64_t vocab = p->derived->vocab_size, width = y->dim[2];
    for (int64_t s = 0; s < b->s; s++)
        for (int64_t i = 0; i < b->b; i++)
            dtype_convert(out + ((first + i) * b->s + s) * vocab, F64,
                          (char *)y->data + (size_t)((s * b->b + i) * width) * dtype_size((DType)y->dtype),
                          (DType)y->dtype, (size_t)vocab);
    tape_end(run->tape);
}

static void one_step(const Parity *p, Run *run, int64_t step, Batch *b, bool noisy, Trace *trace) {
    const Golden *g = p->golden;
    Registry *r = run->model->registry;
    int64_t micro = p->derived->micro_batch_size, n = g->samples / micro;
    StepReport report = run_begin(run);
    for (int64_t i = 0; i < n; i++) {
        golden_batch(g, step, i * micro, b);
        if (step == 0 && trace->logits) keep_logits(p, run, b, i * micro, trace->logits);
        run_microbatch(run, b, n, &report);
    }
    char site[32];
    snprintf(site, sizeof site, "gradient %lld", (long long)step);
    for (int i = 0; noisy && i < r->n; i++)
        perturb(r->params[i], &r->params[i]->main_grad, site, p->injected * sqrt(p->longest_sum), false);
    if (step == 0) trace->gradients = gather_all(&p->map, r, r->grads, report.grad_scale);
    run_update(run, &report);
    trace->steps[step] = (GoldenStep){report.loss, report.optim.grad_norm, report.optim.clip, report.lr};
}

static Err run_case(const Parity *p, Lane lane, bool noisy, Trace *trace) {
    Config c = *p->config;
    c.lane = lane;
    if (!config_given(&c, loss_scale) && !config_given(&c, initial_loss_scale))
        c.loss_scale = DEFAULT_LOSS_SCALE;
    MemoryPlan plan = run_plan_memory(&c, p->derived);
    Run *run = run_new(&c, p->derived, &plan);
    Registry *r = run->model->registry;
    Err e = hf_import(p->golden->init, r);
    for (int i = 0; noisy && !e.code && i < r->n; i++)
        perturb(r->params[i], &r->params[i]->master, "weight", p->injected, true);
    registry_round_values(r);
    const Golden *g = p->golden;
    if (safetensors_find(g->oracle, "logits"))
        trace->logits =
            mem_zero((size_t)(g->samples * g->seq * p->derived->vocab_size), sizeof *trace->logits);
    trace->steps = mem_zero((size_t)g->n_steps, sizeof *trace->steps);
    Batch b = batch_new(p->derived->micro_batch_size, g->seq);
    for (int64_t step = 0; !e.code && step < g->n_steps; step++) one_step(p, run, step, &b, noisy, trace);
    if (!e.code) trace->parameters = gather_all(&p->map, r, r->masters, 1);
    batch_free(&b);
    run_free(run);
    return e;
}

static void free_all(double **x, int64_t n) {
    for (int64_t i = 0; x && i < n; i++) free(x[i]);
    free(x);
}

static void trace_free(Trace *t, int64_t tensors) {
    free_all(t->gradients, tensors);
    free_all(t->parameters, tensors);
    free(t->logits);
    free(t->steps);
}

/* ---- judging ---- */

/* What every comparison needs: the run, the noisy run, and the units to turn the latter into a bound. */
typedef struct Judge {
    const Parity *parity;
    ParityReport *report;
    double roundoff;
} Judge;

static double bound(const Judge *j, double movement) {
    double kappa = movement / j->report->injected;
    return 8 * j->roundoff * fmax(kappa, sqrt(j->report->longest_sum));
}

static void judge(const Judge *j, Row *row, const char *name, const double *x, const double *noisy,
                  const double *oracle, int64_t n, int64_t width, const Scale *scale) {
    TensorError e = tensor_error(x, oracle, n, width, scale),
                moved = tensor_error(noisy, oracle, n, width, scale);
    row_add(row, name, e, bound(j, moved.relative), bound(j, moved.elementwise));
}

static Row *new_row(const Judge *j, const char *quantity) {
    Row *row = &j->report->row[j->report->rows++];
    *row = (Row){0};
    snprintf(row->quantity, sizeof row->quantity, "%s", quantity);
    return row;
}

/* A curve is one tensor of one value per step, each measured against itself. */
static void judge_curve(const Judge *j, const char *quantity, size_t member, const Trace *x,
                        const Trace *noisy) {
    const Golden *g = j->parity->golden;
    Row *row = NULL;
    for (int64_t i = 0; i < g->n_steps; i++) {
#define AT(steps) *(const double *)((const char *)&(steps)[i] + member)
        double oracle = AT(g->steps), ours = AT(x->steps), moved = AT(noisy->steps);
#undef AT
        if (isnan(oracle)) continue;
        char name[32];
        snprintf(name, sizeof name, "step %lld", (long long)i + 1);
        Scale scale = {0};
        scale_add(&scale, &oracle, 1);
        if (!row) row = new_row(j, quantity);
        judge(j, row, name, &ours, &moved, &oracle, 1, 1, &scale);
    }
}

/* The oracle's tensor "<prefix>/<HF name>" as doubles, checked against the map. */
static Err oracle_tensor(const Golden *g, const char *prefix, const HfTensor *t, const double **out) {
    char *name = mem_printf("%s/%s", prefix, t->name);
    const Tensor *x = safetensors_find(g->oracle, name);
    Err e = ERR_OK;
    if (!x)
        e = err_user("oracle.safetensors has no tensor '%s'", name);
    else if (x->dtype != F64 || tensor_count(x) != count_of(t)) {
        char have[96];
        e = err_user("oracle.safetensors: '%s' is %s; %lld F64 elements are needed", name,
                     tensor_describe(x, have, sizeof have), (long long)count_of(t));
    } else
        *out = x->data;
    free(name);
    return e;
}

static Err judge_tensors(const Judge *j, const char *quantity, const char *prefix, double *const *x,
                         double *const *noisy) {
    const HfMap *map = &j->parity->map;
    const Golden *g = j->parity->golden;
    Scale scale = {0};
    for (int64_t i = 0; i < map->count; i++) {
        const double *oracle;
        ERR_RETURN(oracle_tensor(g, prefix, &map->tensors[i], &oracle));
        scale_add(&scale, oracle, count_of(&map->tensors[i]));
    }
    Row *row = new_row(j, quantity);
    for (int64_t i = 0; i < map->count; i++) {
        const HfTensor *t = &map->tensors[i];
        const double *oracle;
        ERR_RETURN(oracle_tensor(g, prefix, t, &oracle));
        judge(j, row, t->name, x[i], noisy[i], oracle, count_of(t), t->dim[t->ndim - 1], &scale);
    }
    return ERR_OK;
}

static Err judge_logits(const Judge *j, const Trace *x, const Trace *noisy) {
    const Golden *g = j->parity->golden;
    const Tensor *t = safetensors_find(g->oracle, "logits");
    if (!t) return ERR_OK;
    int64_t vocab = j->parity->derived->vocab_size, n = g->samples * g->seq * vocab;
    if (t->dtype != F64 || tensor_count(t) != n)
        return err_user("oracle.safetensors: \"logits\" is not F64 [samples, positions, vocabulary]");
    Scale scale = {0};
    scale_add(&scale, t->data, n);
    judge(j, new_row(j, "logits"), "logits of step 1", x->logits, noisy->logits, t->data, n, vocab, &scale);
    return ERR_OK;
}

static Err judge_all(const Judge *j, const Trace *x, const Trace *noisy) {
    judge_curve(j, "loss", offsetof(GoldenStep, loss), x, noisy);
    judge_curve(j, "grad norm", offsetof(GoldenStep, grad_norm), x, noisy);
    judge_curve(j, "clip coefficient", offsetof(GoldenStep, clip), x, noisy);
    judge_curve(j, "learning rate", offsetof(GoldenStep, lr), x, noisy);
    ERR_RETURN(judge_logits(j, x, noisy));
    ERR_RETURN(judge_tensors(j, "gradient of step 1", "grad", x->gradients, noisy->gradients));
    return judge_tensors(j, "parameter at the end", "param", x->parameters, noisy->parameters);
}

/* With 16-bit storage sums run in fp32 and only stored tensors are rounded: the terms that add up are the
 * stages of the network, some ten to a layer. */
static double longest_sum(const Config *c, const Derived *d) {
    if (c->lane == LANE_BF16 || c->lane == LANE_FP16) return 10.0 * (double)c->num_layers;
    double longest = fmax((double)c->hidden_size, (double)d->ffn_hidden_size);
    longest = fmax(longest, (double)d->vocab_size);
    return fmax(longest, (double)(d->global_batch_size * c->seq_length));
}

static double lane_roundoff(Lane lane) {
    static const DType TYPE[] = {[LANE_FP32] = F32, [LANE_FP64] = F64, [LANE_BF16] = BF16, [LANE_FP16] = F16};
    return dtype_roundoff(TYPE[lane]);
}

static Err check_case(const Config *c, const Derived *d, const Golden *g) {
    if (g->seq != c->seq_length)
        return err_user("the case has %lld positions, --seq-length says %lld", (long long)g->seq,
                        (long long)c->seq_length);
    if (g->samples != d->global_batch_size || g->samples % d->micro_batch_size)
        return err_user(
            "the case has %lld samples a step; --global-batch-size is %lld and --micro-batch-size %lld",
            (long long)g->samples, (long long)d->global_batch_size, (long long)d->micro_batch_size);
    int64_t n = g->n_steps * g->samples * (g->seq + 1);
    for (int64_t i = 0; i < n; i++)
        if (g->tokens[i] < 0 || g->tokens[i] >= d->vocab_size)
            return err_user("batches.safetensors: token %lld is outside the vocabulary of %lld",
                            (long long)g->tokens[i], (long long)d->vocab_size);
    return ERR_OK;
}

Err parity_run(const Config *c, const Derived *d, const Golden *g, ParityReport *report) {
    ERR_RETURN(check_case(c, d, g));
    double u = lane_roundoff(c->lane);
    *report = (ParityReport){.roundoff = u, .longest_sum = longest_sum(c, d), .injected = fmax(u, 0x1p-33)};
    Parity p = {.config = c,
                .derived = d,
                .golden = g,
                .injected = report->injected,
                .longest_sum = report->longest_sum};
    Gpt *shapes = gpt_new(c, d);
    HfFamily family;
    Err e = hf_detect(g->init, &family);
    if (!e.code) e = hf_map(shapes->registry, family, &p.map);
    Trace x = {0}, noisy = {0};
    if (!e.code) e = run_case(&p, c->lane, false, &x);
    if (!e.code) e = run_case(&p, LANE_FP64, true, &noisy);
    if (!e.code) e = judge_all(&(Judge){&p, report, u}, &x, &noisy);
    report->pass = !e.code;
    for (int i = 0; i < report->rows; i++) report->pass &= report->row[i].pass;
    trace_free(&x, p.map.count);
    trace_free(&noisy, p.map.count);
    hf_map_free(&p.map);
    gpt_free(shapes);
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
    str_printf(out,
               "bound = 8 u max(kappa, sqrt(K)), u = %.3g, K = %.0f; kappa of each tensor: its movement over "
               "d in an fp64 run with d = %.3g "
               "times normal noise on the weights and d sqrt(K) on the gradients\n",
               r->roundoff, r->longest_sum, r->injected);
    str_printf(out, "verdict: %s\n", r->pass ? "pass" : "FAIL");
}

/* JSON has no infinity: an error that is not finite is null. */
static void number_json(Str *out, const char *key, double x) {
    if (isfinite(x))
        str_printf(out, "\"%s\": %.9g, ", key, x);
    else
        str_printf(out, "\"%s\": null, ", key);
}

void parity_json(const ParityReport *r, const char *case_name, const Config *c, Str *out) {
    str_printf(
        out, "{\n  \"schema\": 1,\n  \"case\": \"%s\",\n  \"lane\": \"%s\",\n  \"micro_batch_size\": %lld,\n",
        case_name, lane_name(c), (long long)c->micro_batch_size);
    str_printf(out,
               "  \"bound\": {\"formula\": \"8 u max(kappa, sqrt(K))\", \"u\": %.9g, \"K\": %.0f, \"d\": "
               "%.9g},\n  \"rows\": [\n",
               r->roundoff, r->longest_sum, r->injected);
    for (int i = 0; i < r->rows; i++) {
        const Row *w = &r->row[i];
        str_printf(out, "    {\"quantity\": \"%s\", \"tensors\": %lld, ", w->quantity, (long long)w->tensors);
        number_json(out, "relative", w->error.relative);
        number_json(out, "relative_bound", w->bound);
        number_json(out, "elementwise", w->error.elementwise);
        number_json(out, "elementwise_bound", w->elementwise_bound);
        str_printf(out, "\"worst\": \"%s\", \"index\": %lld, \"rank\": 0, \"pass\": %s}%s\n", w->worst,
                   (long long)w->error.worst, w->pass ? "true" : "false", i + 1 < r->rows ? "," : "");
    }
    str_printf(out, "  ],\n  \"pass\": %s\n}\n", r->pass ? "true" : "false");
}
