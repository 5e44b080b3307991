#include "validate/parity.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/philox.h"
#include "ckpt/hf.h"
#include "param/bucket.h"
#include "param/collect.h"
#include "train/run.h"
#include "train/world.h"

/* A dynamic scale would skip steps until it has come down from 2^32, which is no parity with an oracle that
 * skips none. */
static const double DEFAULT_LOSS_SCALE = 1024;

/* How often the noise is drawn at most. A tensor's error is often that of its one most sensitive element
 * (Adam's step where the gradient is nearly 0), and a single draw can spare that element: of two normal
 * numbers one exceeds 8 times the other in 8 % of all pairs, but 8 times the largest of three others in
 * 0.2 %. A bound only grows with another draw, so none is needed once all pass. */
enum { DRAWS = 3 };
/* Without noise. */
enum { EXACT = -1 };

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
    Gpt *init; /* the whole model with the case's first parameters, F64 */
    HfMap map; /* of its registry */
    double roundoff, longest_sum;
    Arena *arena;
} Parity;

static int64_t count_of(const HfTensor *t) { return t->dim[0] * (t->ndim == 2 ? t->dim[1] : 1); }

/* Of a flat buffer of all ranks, in the oracle's tensors. */
static double **gather_all(const HfMap *map, const Run *run, FlatBuffer kind, const void *flat,
                           const Registry *whole, double scale) {
    double **out = mem_zero((size_t)map->count, sizeof *out),
           *all = mem_alloc((size_t)whole->elements * sizeof *all);
    collect(run->model->registry, kind, flat, run->comm, whole, all);
    for (int64_t i = 0; i < map->count; i++) {
        int64_t n = count_of(&map->tensors[i]);
        out[i] = mem_alloc((size_t)n * sizeof **out);
        hf_gather(&map->tensors[i], all, F64, out[i], F64);
        for (int64_t j = 0; j < n; j++) out[i][j] *= scale;
    }
    free(all);
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
    Space *slot = space_new(run->device, "activation", SPACE_UNPLANNED),
          *transient = space_new(run->device, "transient", SPACE_UNPLANNED);
    Tape *tape = tape_new(&run->context, slot, transient);
    tape_begin(tape, false);
    Tensor *y = gpt_forward(tape, run->model, &tensors.input);
    int64_t vocab = p->derived->vocab_size, width = y->dim[2];
    for (int64_t s = 0; s < b->s; s++)
        for (int64_t i = 0; i < b->b; i++)
            dtype_convert(out + ((first + i) * b->s + s) * vocab, F64,
                          (char *)y->data + (size_t)((s * b->b + i) * width) * dtype_size((DType)y->dtype),
                          (DType)y->dtype, (size_t)vocab);
    tape_free(tape);
    space_free(slot), space_free(transient);
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

/* One run of the case: a lane, with noise or without. */
typedef struct CaseRun {
    const Parity *parity;
    Config config;
    Derived derived;
    int draw;
    Trace *trace;
} CaseRun;

/* The microbatches of this data-parallel rank, dealt out as the sampler deals them (data/sampler.h). */
static Batch *batches_of(const CaseRun *c, const Run *run, int64_t step, int64_t n, Arena *arena) {
    const Mesh *m = &run->layout.mesh;
    const int64_t micro = c->derived.micro_batch_size;
    Batch *batches = arena_alloc(arena, (size_t)n * sizeof *batches),
          b = batch_new(micro, c->parity->golden->seq);
    for (int64_t i = 0; i < n; i++) {
        const int64_t first = (i * m->size[AXIS_DP] + m->coordinate[AXIS_DP]) * micro;
        golden_batch(c->parity->golden, step, first, &b);
        if (step == 0 && c->trace->logits) keep_logits(c->parity, (Run *)run, &b, first, c->trace->logits);
        batches[i] = batch_slice(&b, m->size[AXIS_CP], m->coordinate[AXIS_CP], arena);
    }
    batch_free(&b);
    return batches;
}

static void one_step(const CaseRun *c, Run *run, int64_t step, const Registry *whole, Trace *trace) {
    const Parity *p = c->parity;
    Registry *r = run->model->registry;
    const int64_t n = p->golden->samples / (c->derived.micro_batch_size * c->derived.data_parallel_size);
    Arena *arena = arena_new();
    StepReport report = run_begin(run);
    run_microbatches(run, batches_of(c, run, step, n, arena), n, n, &report);
    run_reduce(run, &report);
    char site[40];
    snprintf(site, sizeof site, "gradient %lld %d", (long long)step, c->draw);
    for (int i = 0; c->draw != EXACT && i < r->n; i++)
        perturb(r->params[i], &r->params[i]->main_grad, site, p->roundoff * sqrt(p->longest_sum), false);
    if (step == 0)
        trace->gradients = gather_all(&p->map, run, FLAT_GRADS, r->grads, whole, report.grad_scale);
    run_update(run, &report);
    trace->steps[step] = (GoldenStep){report.loss, report.optim.grad_norm, report.optim.clip, report.lr};
    arena_free(arena);
}

/* On every rank; rank 0's results are kept. */
static Err run_rank(void *arg, Comm *comm) {
    CaseRun *c = arg;
    const Parity *p = c->parity;
    const Golden *g = p->golden;
    Trace unheard = {0}, *trace = world_speaks(comm) ? c->trace : &unheard;
    /* Beside the steps one rank gives whole logits: more than is planned for a step. */
    Run *run = run_new(&c->config, &c->derived, NULL, comm);
    Registry *r = run->model->registry;
    spread(p->init->registry, r);
    char site[20];
    snprintf(site, sizeof site, "weight %d", c->draw);
    for (int i = 0; c->draw != EXACT && i < r->n; i++)
        perturb(r->params[i], &r->params[i]->master, site, p->roundoff, true);
    run_publish(run);
    trace->steps = mem_zero((size_t)g->n_steps, sizeof *trace->steps);
    for (int64_t step = 0; step < g->n_steps; step++) one_step(c, run, step, p->init->registry, trace);
    trace->parameters = gather_all(&p->map, run, FLAT_MASTERS, r->masters, p->init->registry, 1);
    trace_free(&unheard, p->map.count);
    run_free(run);
    return ERR_OK;
}

static Err run_case(const Parity *p, Lane lane, bool one_rank, int draw, Trace *trace) {
    CaseRun run = {p, *p->config, *p->derived, draw, trace};
    Config *c = &run.config;
    c->lane = lane;
    if (!config_given(c, loss_scale) && !config_given(c, initial_loss_scale))
        c->loss_scale = DEFAULT_LOSS_SCALE;
    if (one_rank) config_on_one_rank(c, p->arena, &run.derived);
    if (run.derived.rotary_dim)
        run.derived.max_position_embeddings =
            c->seq_length; /* rows of a table, of which the case reads these */
    const Golden *g = p->golden;
    if (config_ranks(c) == 1 && safetensors_find(g->oracle, "logits"))
        trace->logits =
            mem_zero((size_t)(g->samples * g->seq * p->derived->vocab_size), sizeof *trace->logits);
    return one_rank ? run_rank(&run, NULL) : world_run(c, run_rank, &run);
}

/* ---- judging ---- */

/* What every comparison needs. Exact and noisy runs are in fp64; in that lane ours is the exact one. */
typedef struct Judge {
    const Parity *parity;
    ParityReport *report;
    const Trace *ours, *exact, *noisy; /* noisy[report->draws] */
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
    const Golden *g = j->parity->golden;
    Row *row = NULL;
    TensorError moved = {0};
    for (int64_t i = 0; i < g->n_steps; i++) {
#define AT(steps) ((const double *)((const char *)&(steps)[i] + member))
        const double *oracle = AT(g->steps), *ours = AT(j->ours->steps), *exact = AT(j->exact->steps),
                     *noisy[DRAWS];
        for (int k = 0; k < j->report->draws; k++) noisy[k] = AT(j->noisy[k].steps);
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

static Err judge_tensors(const Judge *j, const char *quantity, const char *prefix, size_t member) {
    const HfMap *map = &j->parity->map;
    const double **oracle = mem_zero((size_t)map->count, sizeof *oracle);
#define AT(trace) (*(double *const *const *)((const char *)(trace) + member))
    double *const *ours = AT(j->ours), *const *exact = AT(j->exact), *const * noisy[DRAWS];
    for (int k = 0; k < j->report->draws; k++) noisy[k] = AT(&j->noisy[k]);
#undef AT
    Scale scale = {0};
    Err e = ERR_OK;
    const bool trained_only = !strcmp(prefix, "grad");
    for (int64_t i = 0; i < map->count && !e.code; i++) {
        const HfTensor *t = &map->tensors[i];
        if (trained_only && t->param->spec.flags & PARAM_BUFFER) continue;
        char *name = mem_printf("%s/%s", prefix, t->name);
        e = oracle_tensor(j->parity->golden, name, t->ndim, t->dim, &oracle[i]);
        free(name);
        if (!e.code) scale_add(&scale, oracle[i], count_of(t));
    }
    Row *row = e.code ? NULL : new_row(j, quantity);
    for (int64_t i = 0; row && i < map->count; i++) {
        const HfTensor *t = &map->tensors[i];
        if (!oracle[i]) continue;
        int64_t n = count_of(t), width = t->dim[t->ndim - 1];
        TensorError moved = {0};
        for (int k = 0; k < j->report->draws; k++)
            widen(&moved, tensor_error(noisy[k][i], exact[i], n, width, &scale));
        judge(j, row, t->name, tensor_error(ours[i], oracle[i], n, width, &scale), moved);
    }
    free(oracle);
    return e;
}

static Err judge_logits(const Judge *j) {
    const Golden *g = j->parity->golden;
    if (!j->ours->logits) return ERR_OK; /* the case has none, or no rank has whole ones */
    int64_t vocab = j->parity->derived->vocab_size, n = g->samples * g->seq * vocab;
    const double *oracle;
    ERR_RETURN(oracle_tensor(g, "logits", 3, (int64_t[]){g->samples, g->seq, vocab}, &oracle));
    Scale scale = {0};
    scale_add(&scale, oracle, n);
    TensorError moved = {0};
    for (int k = 0; k < j->report->draws; k++)
        widen(&moved, tensor_error(j->noisy[k].logits, j->exact->logits, n, vocab, &scale));
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
    if (c->hidden_dropout > 0 || c->attention_dropout > 0)
        return err_user("with --hidden-dropout %g and --attention-dropout %g no two implementations draw the "
                        "same: set both to 0",
                        c->hidden_dropout, c->attention_dropout);
    if (c->num_layers > g->init->count)
        return err_user("init.safetensors has %lld tensors, too few for --num-layers %lld",
                        (long long)g->init->count, (long long)c->num_layers);
    int64_t n = g->n_steps * g->samples * (g->seq + 1);
    for (int64_t i = 0; i < n; i++)
        if (g->tokens[i] < 0 || g->tokens[i] >= d->vocab_size)
            return err_user("batches.safetensors: token %lld is outside the vocabulary of %lld",
                            (long long)g->tokens[i], (long long)d->vocab_size);
    return ERR_OK;
}

Err parity_run(const Config *c, const Derived *d, const Golden *g, ParityReport *report) {
    ERR_RETURN(check_case(c, d, g));
    ERR_RETURN(run_check(c, d));
    *report = (ParityReport){.roundoff = lane_roundoff(c->lane), .longest_sum = longest_sum(c, d)};
    Parity p = {.config = c,
                .derived = d,
                .golden = g,
                .roundoff = report->roundoff,
                .longest_sum = report->longest_sum,
                .arena = arena_new()};
    Device *device = device_cpu(1);
    p.init = gpt_new(c, d, NULL);
    HfFamily family;
    Trace ours = {0}, exact = {0}, noisy[DRAWS] = {0};
    bool is_exact = c->lane == LANE_FP64 && config_ranks(c) == 1; /* ranks have no part in the bound either */
    Err e = hf_detect(g->init, &family);
    if (!e.code) e = hf_map(p.init->registry, family, &p.map);
    if (!e.code) e = hf_check(g->init, &p.map);
    if (!e.code) registry_allocate(p.init->registry, device, F64);
    if (!e.code) e = hf_import(g->init, p.init->registry);
    if (!e.code) e = run_case(&p, c->lane, false, EXACT, &ours);
    report->is_heard = !e.code && ours.steps;
    if (report->is_heard && !is_exact) e = run_case(&p, LANE_FP64, true, EXACT, &exact);
    Judge j = {&p, report, &ours, is_exact ? &ours : &exact, noisy};
    while (!e.code && report->is_heard && !report->pass && report->draws < DRAWS) {
        e = run_case(&p, LANE_FP64, true, report->draws, &noisy[report->draws]);
        report->draws++;
        if (!e.code) e = judge_all(&j);
    }
    trace_free(&ours, p.map.count);
    trace_free(&exact, p.map.count);
    for (int k = 0; k < DRAWS; k++) trace_free(&noisy[k], p.map.count);
    hf_map_free(&p.map);
    gpt_free(p.init);
    arena_free(p.arena);
    device_free(device);
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

/* JSON has no infinity: an error that is not finite is null. */
static void number_json(Str *out, const char *key, double x) {
    if (isfinite(x))
        str_printf(out, "\"%s\": %.9g, ", key, x);
    else
        str_printf(out, "\"%s\": null, ", key);
}

/* A folder may have any name. */
static void text_json(Str *out, const char *s) {
    str_puts(out, "\"");
    for (; *s; s++)
        if ((unsigned char)*s < 32 || *s == '"' || *s == '\\')
            str_printf(out, "\\u%04x", *s);
        else
            str_add(out, s, 1);
    str_puts(out, "\"");
}

void parity_json(const ParityReport *r, const char *case_name, const Config *c, Str *out) {
    str_puts(out, "{\n  \"schema\": 1,\n  \"case\": ");
    text_json(out, case_name);
    str_printf(out, ",\n  \"lane\": \"%s\",\n  \"micro_batch_size\": %lld,\n", lane_name(c),
               (long long)c->micro_batch_size);
    str_printf(out,
               "  \"bound\": {\"formula\": \"8 u max(kappa, sqrt(K))\", \"u\": %.9g, \"K\": %.0f},\n  "
               "\"rows\": [\n",
               r->roundoff, r->longest_sum);
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
