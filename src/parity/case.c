#include "parity/case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/fault.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/philox.h"
#include "base/statistics.h"
#include "data/sampler.h"
#include "models/option_map.h"
#include "param/bucket.h"
#include "param/collect.h"
#include "parity/logits.h"
#include "run/launch.h"
#include "train/log.h"

/* The loss scale for fp16. The oracle skips no steps, whereas a run would skip steps while a dynamic loss scale
 * decreases from 2^32. */
static const double DEFAULT_LOSS_SCALE = 64;

/* ---- cases ---- */

static Err case_check(const Config *c, const Golden *g) {
    if (c->num_layers > g->init->count)
        return err_user("init.safetensors has only %lld tensors, too few for --num-layers %lld",
                        (long long)g->init->count, (long long)c->num_layers);
    ERR_RETURN(golden_check(g, c));
    const SampleShape *has = &g->all.shape;
    const int64_t positions = has->encoder ? c->decoder_seq_length : c->seq_length;
    if (has->positions != positions)
        return err_user("the case has %lld positions, which must equal --%sseq-length %lld",
                        (long long)has->positions, has->encoder ? "decoder-" : "", (long long)positions);
    if (has->encoder && has->encoder != c->seq_length)
        return err_user("the case has %lld encoder positions, which must equal --encoder-seq-length %lld",
                        (long long)has->encoder, (long long)c->seq_length);
    if (g->samples != c->derived.global_batch_size || g->samples % c->derived.micro_batch_size)
        return err_user("the case has %lld samples per step: --global-batch-size (%lld) must equal this "
                        "number, and --micro-batch-size (%lld) must divide it",
                        (long long)g->samples, (long long)c->derived.global_batch_size,
                        (long long)c->derived.micro_batch_size);
    if (c->hidden_dropout > 0 || c->attention_dropout > 0 || c->classifier_dropout > 0)
        return err_user("--hidden-dropout %g and --attention-dropout %g draw random masks that differ "
                        "between implementations: set both to 0, and omit --classifier-dropout",
                        c->hidden_dropout, c->attention_dropout);
    return ERR_OK;
}

/* Returns the name of a loss, or NULL if the model has no such loss. Numbers below MODEL_LOSSES denote the
 * losses of heads, and higher numbers denote router losses. */
static const char *loss_name(const Model *m, int loss) {
    if (loss < MODEL_LOSSES) return loss < m->plan.n_losses ? m->plan.loss[loss].name : NULL;
    return model_router_loss_coeff(m, loss - MODEL_LOSSES) ? ROUTER_LOSS_NAMES[loss - MODEL_LOSSES] : NULL;
}

/* Returns whether two names are equal. '_' in `theirs` also matches a space, because field names in the log
 * contain '_' instead of spaces. */
static bool names_same(const char *ours, const char *theirs) {
    while (*ours && (*ours == *theirs || (*ours == ' ' && *theirs == '_'))) ours++, theirs++;
    return !*ours && !*theirs;
}

static Err find_loss(const Model *m, const char *name, int *out) {
    Str all = {0};
    for (int i = 0; i < GOLDEN_LOSSES; i++) {
        const char *ours = loss_name(m, i);
        if (ours && names_same(ours, name)) return str_free(&all), *out = i, ERR_OK;
        if (ours) str_printf(&all, "%s'%s'", all.len ? ", " : "", ours);
    }
    const Err e = err_user("curve.json has the loss %s, which this model lacks; the model has %s",
                           quote(name).s, all.s);
    str_free(&all);
    return e;
}

enum {
    SPACES = 4
}; /* memory spaces of a one-rank run: activations and transients, for the step and for the full logits */

Err case_open(const Golden *g, const Config *c, Case *out) {
    *out = (Case){.golden = g, .vocab = c->derived.vocab_size, .config = *c, .arena = arena_new()};
    ERR_RETURN(case_check(c, g));
    config_on_one_rank(&out->config, out->arena);
    out->device = device_cpu(1);
    ERR_RETURN(space_check(out->device, SPACES));
    out->init = model_new(&out->config, NULL);
    Registry *r = out->init->registry;
    for (int i = 0; i < g->n_losses; i++)
        ERR_RETURN(find_loss(out->init, g->loss_names[i], &out->loss_of[i]));
    ERR_RETURN(hf_match(g->init, r, NULL, &out->map));
    registry_allocate(r, out->device, F64, false);
    ERR_RETURN(hf_import(g->init, &out->map, r));
    out->first = arena_alloc(out->arena, (size_t)r->elements * sizeof *out->first);
    memcpy(out->first, r->masters, (size_t)r->elements * sizeof *out->first);
    out->at = arena_alloc(out->arena, (size_t)(out->map.count + 1) * sizeof *out->at);
    for (int64_t i = 0; i < out->map.count; i++) {
        out->at[i] = out->total;
        out->total += hf_count(&out->map.tensors[i]);
    }
    return ERR_OK;
}

void case_close(Case *c) {
    hf_map_free(&c->map);
    model_free(c->init);
    if (c->device) device_free(c->device);
    if (c->arena) arena_free(c->arena);
    *c = (Case){0};
}

/* ---- traces ---- */

Trace *trace_new(const Case *c) {
    const Golden *g = c->golden;
    const Choices of =
        choices_of(c->init->registry, &c->config, g->n_steps, g->samples, g->all.shape.positions);
    const int64_t logits = g->samples * g->all.shape.positions * c->vocab;
    const size_t bytes = sizeof(Trace) + (size_t)g->n_steps * sizeof(GoldenStep) +
                         (size_t)(4 * c->total + logits + choices_elements(&of)) * sizeof(double);
    Trace *t = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(t != MAP_FAILED, "no memory for a trace of %zu bytes", bytes);
    *t = (Trace){.steps = (GoldenStep *)(t + 1), .choices = of, .bytes = bytes};
    t->gradients = (double *)(t->steps + g->n_steps);
    t->parameters = t->gradients + c->total;
    t->weights = t->parameters + c->total;
    t->ranks = t->weights + c->total;
    t->logits = t->ranks + c->total;
    choices_place(&t->choices, t->logits + logits);
    return t;
}

void trace_free(Trace *t) {
    if (t) munmap(t, t->bytes);
}

uint64_t trace_hash(const Case *c, const Trace *t) {
    uint64_t h = hash64(t->parameters, (size_t)c->total * sizeof *t->parameters, 0);
    for (int64_t i = 0; i < c->golden->n_steps; i++)
        h = hash64(&t->steps[i].loss, sizeof t->steps[i].loss, h);
    return h;
}

/* ---- runs ---- */

typedef struct CaseRun {
    const Case *of;
    Config config;
    Noise noise;
    CaseWatch watch;
    Trace *trace;
} CaseRun;

typedef struct CaseRuns {
    CaseRun each; /* settings shared by all runs */
    const CaseTurn *turns;
    int n;
} CaseRuns;

/* Converts an array from the full registry's layout to the oracle's tensors. `kind` is FLAT_MASTERS for weights, which
 * may differ by a constant. */
static void to_tensors(const Case *c, FlatBuffer kind, const double *whole, double *out) {
    for (int64_t i = 0; i < c->map.count; i++) {
        HfTensor t = c->map.tensors[i];
        t.plus_one &= kind == FLAT_MASTERS;
        hf_gather(&t, NULL, whole, F64, out + c->at[i], F64);
    }
}

/* Gathers a flat buffer from all ranks into the oracle's tensors. `out` is NULL on ranks that do not receive
 * the result. */
static void gather_all(const Case *c, const Trainer *t, FlatBuffer kind, const void *flat, double scale,
                       double *out) {
    const Registry *whole = c->init->registry;
    double *all = mem_alloc((size_t)whole->elements * sizeof *all);
    registry_gather_whole(t->run.model->registry, kind, flat, t->run.comm, whole, all);
    if (out) to_tensors(c, kind, all, out);
    for (int64_t i = 0; out && i < c->total; i++) out[i] *= scale;
    free(all);
}

static void gather_ranks(const Case *c, const Trainer *t, double *out) {
    const Registry *whole = c->init->registry;
    double *all = mem_alloc((size_t)whole->elements * sizeof *all);
    registry_gather_owners(t->run.model->registry, t->run.comm, whole, all);
    if (out) to_tensors(c, FLAT_GRADS, all, out);
    free(all);
}

static uint64_t noise_key(const Param *p, const char *site) {
    return hash64(p->spec.name, strlen(p->spec.name), hash_name(site));
}

/* Adds noise to a gradient, except to elements that are exactly 0. An element is exactly 0 if it is an empty
 * sum, such as the embedding gradient of a token that does not occur. */
static void perturb_gradient(const Param *p, Device *device, const Noise *noise, uint64_t seed,
                             int64_t step) {
    const int64_t n = param_logical_count(p);
    DeviceView view =
        device_view(device, p->main_grad.data, (size_t)n * sizeof(double), VIEW_READ | VIEW_WRITE);
    double *x = view.data;
    char site[48];
    snprintf(site, sizeof site, "gradient %lld %d", (long long)step, noise->draw);
    const double size = noise->gradients * rms_of(x, n);
    const uint64_t key = noise_key(p, site);
    for (int64_t i = 0; i < n; i++)
        if (x[i] != 0) x[i] += size * philox_normal(seed, key, (uint64_t)i);
    device_view_end(&view);
}

/* Sets a run's initial weights: the case's weights multiplied by 1 + noise. */
static void set_weights(const Case *c, const Noise *noise) {
    const Registry *r = c->init->registry;
    double *all = r->masters;
    memcpy(all, c->first, (size_t)r->elements * sizeof *all);
    char site[40];
    snprintf(site, sizeof site, "weight %d", noise->draw);
    for (int i = 0; noise->draw != NO_NOISE && i < r->n; i++) {
        const Param *p = r->params[i];
        if (p->spec.flags & PARAM_BUFFER) continue;
        const uint64_t key = noise_key(p, site);
        double *x = all + p->offset;
        for (int64_t k = 0; k < param_logical_count(p); k++)
            x[k] *= 1 + noise->weights * philox_normal((uint64_t)c->config.seed, key, (uint64_t)k);
    }
}

static void keep_logits(const CaseRun *c, Trainer *t, const Batch *b) {
    const MicrobatchContext context = {.training = true, .first_sample = b->indices[0]};
    logits_compute(t->run.model, &t->run.context, &context, b, c->watch.trace, c->watch.arg,
                   c->trace->logits + b->indices[0] * b->shape.positions * c->of->vocab);
}

/* Returns this data-parallel rank's microbatches. */
static Batch *batches_of(const CaseRun *c, Trainer *t, int64_t step, int64_t n, Arena *arena) {
    const Mesh *m = &t->run.layout.mesh;
    const int64_t micro = c->config.derived.micro_batch_size;
    Batch *batches = arena_alloc(arena, (size_t)n * sizeof *batches),
          b = batch_new(micro, t->run.model->plan.sample);
    Sampler *sampler;
    Err e =
        sampler_open(&(SamplerConfig){.total_samples = c->of->golden->samples,
                                      .micro_batch_size = micro,
                                      .dp_rank = m->coordinate[AXIS_DP],
                                      .dp_size = m->size[AXIS_DP],
                                      .deal = c->config.batch_invariant_mode ? c->config.derived.choices : 0},
                     &sampler);
    CHECK(!e.code, "%s", e.msg); /* the rules have checked the options */
    for (int64_t i = 0; i < n && sampler_next(sampler, b.indices, &b.b); i++) {
        golden_batch(c->of->golden, step, &b);
        if (step == 0 && c->trace->has_logits) keep_logits(c, t, &b);
        batches[i] = batch_slice(&b, m->size[AXIS_CP], m->coordinate[AXIS_CP], arena);
    }
    sampler_free(sampler);
    batch_free(&b);
    return batches;
}

static GoldenStep golden_step(const Case *c, const StepReport *s) {
    GoldenStep step = {.loss = s->loss, .grad_norm = s->optim.grad_norm, .clip = s->optim.clip, .lr = s->lr};
    for (int i = 0; i < c->golden->n_losses; i++) {
        const int of = c->loss_of[i];
        step.named[i] = of < MODEL_LOSSES ? trainer_mean(s->sum[of]) : s->router_loss[of - MODEL_LOSSES];
    }
    return step;
}

static void one_step(const CaseRun *c, Trainer *t, int64_t step, Trace *heard) {
    const int64_t n =
        c->of->golden->samples / (c->config.derived.micro_batch_size * c->config.derived.data_parallel_size);
    const CaseWatch *w = &c->watch;
    Registry *r = t->run.model->registry;
    Arena *arena = arena_new();
    if (w->step) w->step(w->arg, t, step);
    StepReport report = trainer_begin_step(t);
    trainer_microbatches(t, batches_of(c, t, step, n, arena), n, n, &report);
    trainer_reduce(t, &report);
    trainer_read(t, &report);
    for (int i = 0; c->noise.draw != NO_NOISE && c->noise.gradients > 0 && i < r->n; i++)
        if (param_is_trained(r->params[i]))
            perturb_gradient(r->params[i], r->device, &c->noise, (uint64_t)c->config.seed, step);
    if (w->gradients) w->gradients(w->arg, t, &report);
    if (step == 0)
        gather_all(c->of, t, FLAT_GRADS, r->grads, report.grad_scale, heard ? heard->gradients : NULL);
    trainer_update(t, &report);
    if (w->updated) w->updated(w->arg, t, &report);
    if (heard) heard->steps[step] = golden_step(c->of, &report);
    arena_free(arena);
}

static void wait_for_all(Comm *comm) {
    if (comm)
        comm_run(comm, &(CommCall){.kind = COMM_BARRIER, .group = comm_everyone(comm), .site = "weights"});
}

/* Sets the weights that the threads in a process share. One thread sets the weights after all threads have
 * finished reading the previous ones. */
static void share_weights(const CaseRun *c, Comm *comm) {
    wait_for_all(comm);
    if (!comm || comm_processes() > 1 || comm_rank(comm) == 0) set_weights(c->of, &c->noise);
    wait_for_all(comm);
}

/* Runs one turn. Returns the device, so that the next turn can use the same device. */
static Device *run_turn(const CaseRun *c, Comm *comm, Device *device) {
    Trace *heard = rank_is_printer(comm) ? c->trace : NULL;
    share_weights(c, comm);
    /* After memory planning, a GPU uses the same kernels as in training. Only one-rank runs are planned,
     * because each of several ranks would need a separate plan. */
    if (!comm) memory_plan_new(&c->config, comm, device);
    /* The trainer receives no memory plan, because one rank also computes the full logits, which need more
     * memory than a step. */
    Trainer *t = trainer_new(&c->config, NULL, comm, device);
    Registry *r = t->run.model->registry;
    registry_scatter_whole(c->of->init->registry, r);
    trainer_publish(t);
    if (heard) to_tensors(c->of, FLAT_MASTERS, c->of->init->registry->masters, heard->weights);
    gather_ranks(c->of, t, heard ? heard->ranks : NULL);
    executor_trace(t->executor, c->watch.trace, c->watch.arg);
    t->run.context.probe = c->watch.probe, t->run.context.probe_arg = c->watch.arg;
    if (c->watch.begin) c->watch.begin(c->watch.arg, t);
    const int64_t steps = c->watch.steps ? c->watch.steps : c->of->golden->n_steps;
    for (int64_t step = 0; step < steps; step++) one_step(c, t, step, heard);
    gather_all(c->of, t, FLAT_MASTERS, r->masters, 1, heard ? heard->parameters : NULL);
    if (heard) heard->has_steps = true;
    return trainer_free_but_device(t);
}

/* Runs all turns on one rank. Only the results of rank 0 are kept. All runs share a device, because opening GPUs and
 * NCCL takes seconds. */
static Err run_rank(void *arg, Comm *comm) {
    const CaseRuns *all = arg;
    CaseRun c = all->each;
    char transport[200];
    Device *device;
    if (all->turns->watch && all->turns->watch->on_host)
        device = device_cpu((int)c.config.derived.cpu_threads);
    else
        ERR_RETURN(rank_open_device(&c.config, comm, &device, transport));
    for (const CaseTurn *t = all->turns; t < all->turns + all->n; t++) {
        c.noise = t->noise, c.watch = t->watch ? *t->watch : (CaseWatch){0}, c.trace = t->out;
        device = run_turn(&c, comm, device);
    }
    rank_free_device(comm, device);
    return ERR_OK;
}

/* In the exact and fp64 lanes, resets the options for narrow types, because these lanes do not use such
 * types. */
static void forget_narrow_types(Config *c, bool quantises) {
    if (c->lane != LANE_FP64 && c->lane != LANE_EXACT) return;
    if (!quantises) c->fp8_format = FP8_NONE;
    c->use_precision_aware_optimizer = false;
    c->exp_avg_dtype = STATE_FP32, c->exp_avg_sq_dtype = SQUARES_FP32;
}

void case_set_loss_scale(Config *c) {
    if (!config_given(c, loss_scale) && !config_given(c, initial_loss_scale))
        c->loss_scale = DEFAULT_LOSS_SCALE;
}

Err case_run_turns(const Case *of, const Config *config, const CaseTurn *turns, int n) {
    const CaseWatch *watch = turns->watch;
    CaseRuns all = {{.of = of, .config = *config}, turns, n};
    Config *c = &all.each.config;
    forget_narrow_types(c, watch && watch->quantises);
    case_set_loss_scale(c);
    if (watch && (watch->trace || watch->probe))
        c->cuda_graph_impl = CUDA_GRAPH_NONE; /* ops in a replayed graph are not traced */
    /* number of rows in the tables that the case reads */
    if (all.each.config.derived.rotary_dim)
        all.each.config.derived.max_position_embeddings =
            c->seq_length > of->golden->all.shape.positions ? c->seq_length : of->golden->all.shape.positions;
    const bool has_logits =
        (!watch || watch->logits) && config_ranks(c) == 1 && safetensors_find(of->golden->oracle, "logits");
    for (int i = 0; i < n; i++) turns[i].out->has_logits = has_logits;
    return world_run(c, run_rank, &all);
}

Err case_run(const Case *of, const Config *config, Noise noise, const CaseWatch *watch, Trace *out) {
    return case_run_turns(of, config, &(CaseTurn){noise, watch, out}, 1);
}

Err case_run_alone(const Case *c, Lane lane, Noise noise, const CaseWatch *watch, Trace *out) {
    Config config = c->config;
    config.lane = lane;
    if (lane == LANE_FP64) config.device = ON_CPU, config.cuda_graph_impl = CUDA_GRAPH_NONE;
    return case_run(c, &config, noise, watch, out);
}
