#include "plan/step_time.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/amount.h"
#include "base/mem.h"
#include "measure/peaks.h"
#include "models/option_map.h"
#include "plan/timeline.h"
#include "train/trainer.h"

/* ---- the simulation ---- */

/* Opens a device that stands for a GPU which is not here, and assumes that it has FP8 GEMMs. */
static Err open_target(const Config *c, Device **out) {
    const bool gpu = c->device != ON_CPU;
    const DeviceSpec spec = {.kind = DEVICE_CPU,
                             .threads = 1,
                             .fp8_gemms = gpu ? FP8_GEMM_WHOLE | FP8_GEMM_BLOCKS | FP8_GEMM_EXPERTS : 0};
    return device_open(&spec, out);
}

/* Adds `each` times the parts of a simulated step. */
static void add_parts(const SimTimes *x, int ranks, double each, StepTime *t) {
    t->ns += each * x->ns;
    for (int i = 0; i < ranks; i++) {
        const double *from = (const double *)&x->parts[i];
        double *to = (double *)&t->parts;
        for (size_t k = 0; k < sizeof t->parts / sizeof *to; k++) to[k] += each * from[k] / ranks;
    }
}

static Err simulate(const Trace *trace, const Config *c, Timeline *timeline, Arena *arena, SimTimes *times) {
    int *members = arena_alloc(arena, (size_t)trace->meetings * sizeof *members);
    for (int i = 0; i < trace->meetings; i++) members[i] = trace->meeting[i].members;
    const SimStep step = {.rank = trace->rank,
                          .ranks = trace->ranks,
                          .members = members,
                          .meetings = trace->meetings,
                          .launch_ns = c->cuda_graph_impl == CUDA_GRAPH_NONE ? trace->rates->launch_ns : 0,
                          .draw = timeline ? timeline_add : NULL,
                          .arg = timeline};
    return simulate_step(&step, arena, times);
}

/* The step that is predicted, and what its prediction needs. */
typedef struct Prediction {
    const RunPlan *plan;
    const Device *target;
    Trace trace;
    StepTime *time;
    const char *timeline; /* the file, or NULL after it has been written */
} Prediction;

static Err draw(Prediction *p, int64_t microbatches, Timeline *timeline) {
    char title[200];
    snprintf(title, sizeof title, "A predicted step of %s with %s.",
             amount(p->plan->layout.mesh.world, "rank").s, amount(microbatches, "microbatch").s);
    const Err e = timeline_write(timeline, &p->trace, title, p->timeline);
    p->timeline = NULL;
    return e;
}

/* Records and simulates a step with this number of microbatches, which counts `each` times. */
static Err add_step(Prediction *p, int64_t microbatches, int64_t each) {
    step_trace_record(&p->trace, p->plan, p->target, microbatches, each);
    for (int i = 0; i < p->trace.ranks; i++) p->time->events += p->trace.rank[i].n;
    if (p->plan->layout.mesh.world == 1 && !p->timeline) return ERR_OK;
    Arena *arena = arena_new();
    Timeline timeline = {.n = 0};
    SimTimes times;
    Err e = simulate(&p->trace, p->plan->config, p->timeline ? &timeline : NULL, arena, &times);
    if (!e.code) add_parts(&times, p->trace.ranks, (double)each, p->time);
    if (!e.code && p->timeline) e = draw(p, microbatches, &timeline);
    timeline_free(&timeline);
    arena_free(arena);
    return e;
}

/* Returns the number of microbatches after which a schedule repeats itself. */
static int64_t period_of(const PipelineSpec *s) {
    return s->kind == SCHEDULE_INTERLEAVED ? s->group : s->mixed ? 2 : 1;
}

/* A step with M microbatches is the shortest one plus k periods: (1 - k) steps with `least` microbatches, and k steps
 * with `period` more. */
static Err add_steps(Prediction *prediction) {
    const RunPlan *p = prediction->plan;
    const int64_t unit = pipeline_unit(p->config), all = p->microbatches, period = period_of(&p->spec) * unit;
    const int64_t shortest = p->layout.mesh.world == 1 ? 1 : pipeline_shortened(&p->spec).microbatches * unit,
                  k = shortest < all ? (all - shortest) / period : 0, least = all - k * period;
    ERR_RETURN(add_step(prediction, least, 1 - k));
    return k ? add_step(prediction, least + period, k) : ERR_OK;
}

/* ---- the time ---- */

static int by_name(const void *a, const void *b) {
    const Rate *x = &((const StepWork *)a)->work, *y = &((const StepWork *)b)->work;
    const int names = strcmp(x->name, y->name);
    return names ? names : memcmp(x->size, y->size, sizeof x->size);
}

static double peak_of(const Config *c, const Rates *r) {
    const DType type = map_storage(c->lane);
    const double stated = bench_peak(r->device, type) * 1e12;
    return stated > 0 ? stated : r->gemm[type] * 1e9;
}

static void add_times(const RunPlan *p, StepTime *t) {
    const Config *c = p->config;
    const int ranks = p->pipeline.ranks;
    for (const StepWork *w = t->work; w < t->work + t->n; w++) {
        const double ns = w->work.ns * (double)w->calls / ranks;
        t->calls += w->calls, t->device_ns += ns;
        t->family_ns[w->family] += ns, t->source_ns[w->source] += ns;
    }
    if (c->cuda_graph_impl == CUDA_GRAPH_NONE) t->host_ns = t->rates->launch_ns * (double)t->calls / ranks;
    if (p->layout.mesh.world == 1) t->ns = fmax(t->device_ns, t->host_ns);
    const double samples = (double)c->derived.global_batch_size, peak = peak_of(c, t->rates);
    t->tokens_per_second = samples * (double)c->seq_length / (t->ns * 1e-9);
    t->mfu = peak > 0 ? p->flops * samples / (t->ns * 1e-9) / peak / p->layout.mesh.world : NAN;
}

static Err check_rates(const StepTime *t) {
    Str lacks = {0};
    const char *last = ""; /* equal names are adjacent */
    for (const StepWork *w = t->work; w < t->work + t->n; w++) {
        if (w->source != RATE_NONE || !strcmp(w->work.name, last)) continue;
        last = w->work.name;
        str_printf(&lacks, "%s%s", lacks.len ? ", " : "", last);
    }
    const Err e = lacks.len
                      ? err_user("the rates file has no rates for %.700s: measure them with 'isotron bench "
                                 "rates' and without --filter",
                                 lacks.s)
                      : ERR_OK;
    str_free(&lacks);
    return e;
}

static Err check_links(const Trace *t) {
    if (!t->lacks.members) return ERR_OK;
    return err_user("there is no time for %s of %d ranks, %d of them on one host: measure it with 'isotron "
                    "bench comm --json FILE', or describe the hosts, and add --links FILE",
                    comm_kind_name(t->lacks_kind), t->lacks.members, t->lacks.per_host);
}

/* Rejects options whose copies and updates on the host take a time that is not predicted. */
static Err check_offloading(const Config *c) {
    const char *name = c->cpu_offloading                       ? "--cpu-offloading"
                       : c->fine_grained_activation_offloading ? "--fine-grained-activation-offloading"
                       : c->optimizer_cpu_offload              ? "--optimizer-cpu-offload"
                                                               : NULL;
    return name ? err_user("rates do not include the copies and updates of %s: remove it, or --rates", name)
                : ERR_OK;
}

Err step_time(const RunPlan *p, const Device *target, const Rates *rates, const char *timeline, Arena *arena,
              StepTime *t) {
    if ((p->config->device == ON_CPU) != !strncmp(rates->device, "CPU", 3))
        return err_user("the rates are of %s, but the plan is for a %s: %s --device cpu", rates->device,
                        p->config->device == ON_CPU ? "CPU" : "GPU",
                        p->config->device == ON_CPU ? "remove" : "add");
    ERR_RETURN(check_offloading(p->config));
    Device *assumed = NULL;
    if (!target) ERR_RETURN(open_target(p->config, &assumed));
    Prediction prediction = {.plan = p,
                             .target = target ? target : assumed,
                             .trace.rates = rates,
                             .time = t,
                             .timeline = timeline};
    Trace *trace = &prediction.trace;
    *t = (StepTime){.rates = rates, .ranks = p->layout.mesh.world};
    const Err e = add_steps(&prediction);
    t->n = trace->n, t->work = arena_alloc(arena, (size_t)(t->n + 1) * sizeof *t->work);
    if (t->n) memcpy(t->work, trace->work, (size_t)t->n * sizeof *t->work);
    qsort(t->work, (size_t)t->n, sizeof *t->work, by_name);
    t->blocks = trace->blocks;
    memcpy(t->link_ns, trace->link_ns, sizeof t->link_ns);
    const Err lacks = check_links(trace);
    step_trace_free(trace);
    device_free(assumed);
    ERR_RETURN(e);
    add_times(p, t);
    ERR_RETURN(check_rates(t));
    return lacks;
}

double step_time_microbatch(const RunPlan *p, const Device *target, const Rates *rates, int64_t *events) {
    Device *assumed = NULL;
    if (!target && open_target(p->config, &assumed).code) return 0;
    StepTime t = {.rates = rates};
    Prediction prediction = {p, target ? target : assumed, {.rates = rates}, &t, NULL};
    const int64_t unit = pipeline_unit(p->config);
    Err e = add_step(&prediction, unit, -1);
    if (!e.code) e = add_step(&prediction, 2 * unit, 1);
    double ns = 0;
    for (const StepWork *w = prediction.trace.work; w < prediction.trace.work + prediction.trace.n; w++)
        ns += w->work.ns * (double)w->calls;
    for (unsigned i = 0; i < SIM_AXES; i++)
        if (p->layout.data.stage > 1 || !(i & 1 << AXIS_DP)) ns += t.parts.exposed[i];
    step_trace_free(&prediction.trace);
    device_free(assumed);
    *events += t.events;
    return e.code ? 0 : ns / (double)unit;
}
