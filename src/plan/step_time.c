#include "plan/step_time.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "measure/peaks.h"
#include "models/option_map.h"
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

static Err simulate(Trace *trace, const Config *c, int64_t each, StepTime *t) {
    Arena *arena = arena_new();
    SimTimes times;
    int *members = arena_alloc(arena, (size_t)trace->meetings * sizeof *members);
    for (int i = 0; i < trace->meetings; i++) members[i] = trace->meeting[i].members;
    const SimStep step = {.rank = trace->rank,
                          .ranks = trace->ranks,
                          .members = members,
                          .meetings = trace->meetings,
                          .launch_ns = c->cuda_graph_impl == CUDA_GRAPH_NONE ? t->rates->launch_ns : 0};
    const Err e = simulate_step(&step, arena, &times);
    if (!e.code) add_parts(&times, trace->ranks, (double)each, t);
    arena_free(arena);
    return e;
}

/* Records and simulates a step with this number of microbatches, which counts `each` times. */
static Err add_step(const RunPlan *p, const Device *target, int64_t microbatches, int64_t each, Trace *trace,
                    StepTime *t) {
    step_trace_record(trace, p, target, microbatches, each);
    return p->layout.mesh.world > 1 ? simulate(trace, p->config, each, t) : ERR_OK;
}

/* Returns the number of microbatches after which a schedule repeats itself. */
static int64_t period_of(const PipelineSpec *s) {
    return s->kind == SCHEDULE_INTERLEAVED ? s->group : s->mixed ? 2 : 1;
}

/* A step with M microbatches is the shortest one plus k periods: (1 - k) steps with `least` microbatches, and k steps
 * with `period` more. */
static Err add_steps(const RunPlan *p, const Device *target, Trace *trace, StepTime *t) {
    const int64_t unit = pipeline_unit(p->config), all = p->microbatches, period = period_of(&p->spec) * unit;
    const int64_t shortest = p->layout.mesh.world == 1 ? 1 : pipeline_shortened(&p->spec).microbatches * unit,
                  k = shortest < all ? (all - shortest) / period : 0, least = all - k * period;
    ERR_RETURN(add_step(p, target, least, 1 - k, trace, t));
    return k ? add_step(p, target, least + period, k, trace, t) : ERR_OK;
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
    return err_user("there is no time for a %s of %d ranks, %d of them on one host: measure it with 'isotron "
                    "bench comm --json FILE', or describe the hosts, and add --links FILE",
                    comm_kind_name(t->lacks_kind), t->lacks.members, t->lacks.per_host);
}

Err step_time(const RunPlan *p, const Device *target, const Rates *rates, Arena *arena, StepTime *t) {
    if ((p->config->device == ON_CPU) != !strncmp(rates->device, "CPU", 3))
        return err_user("the rates are of %s, but the plan is for a %s: %s --device cpu", rates->device,
                        p->config->device == ON_CPU ? "CPU" : "GPU",
                        p->config->device == ON_CPU ? "remove" : "add");
    Device *assumed = NULL;
    if (!target) ERR_RETURN(open_target(p->config, &assumed));
    Trace trace = {.rates = rates};
    *t = (StepTime){.rates = rates, .ranks = p->layout.mesh.world};
    const Err e = add_steps(p, target ? target : assumed, &trace, t);
    t->n = trace.n, t->work = arena_alloc(arena, (size_t)(t->n + 1) * sizeof *t->work);
    if (t->n) memcpy(t->work, trace.work, (size_t)t->n * sizeof *t->work);
    qsort(t->work, (size_t)t->n, sizeof *t->work, by_name);
    memcpy(t->link_ns, trace.link_ns, sizeof t->link_ns);
    const Err lacks = check_links(&trace);
    step_trace_free(&trace);
    device_free(assumed);
    ERR_RETURN(e);
    add_times(p, t);
    ERR_RETURN(check_rates(t));
    return lacks;
}
