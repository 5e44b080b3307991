#include "plan/step_time.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "measure/peaks.h"
#include "models/option_map.h"
#include "train/trainer.h"

/* ---- the calls of a step ---- */

typedef struct CallList {
    const Rates *rates;
    int64_t each; /* how many calls a call counts as */
    StepWork *work;
    int n, room;
} CallList;

/* This function is a CallObserver. */
static void count_call(void *arg, const OpDef *op, const Call *c) {
    CallList *all = arg;
    const Rate r = rate_of(op, c);
    int i = 0;
    while (i < all->n &&
           (strcmp(all->work[i].work.name, r.name) || memcmp(all->work[i].work.size, r.size, sizeof r.size)))
        i++;
    if (i == all->n) {
        if (all->n == all->room)
            all->work = mem_grow(all->work, (size_t)(all->room = 2 * all->room + 64), sizeof *all->work);
        StepWork *w = &all->work[all->n++];
        *w = (StepWork){.work = r, .family = op->family};
        w->work.ns = rates_time(all->rates, op, c, &w->source);
    }
    all->work[i].calls += all->each;
}

/* Counts the calls of a step with this number of microbatches, `each` times. */
static void count_calls(const RunPlan *p, const Device *target, int64_t microbatches, int64_t each,
                        CallList *all) {
    Device *null = device_null_for(target);
    null->any_order = !p->config->deterministic_mode;
    Trainer *r = trainer_new(p->config, NULL, NULL, null);
    all->each = each;
    null->observer = count_call, null->observer_arg = all;
    trainer_dry_step(r, microbatches);
    null->observer = NULL;
    trainer_free(r);
}

/* Opens a device that stands for a GPU which is not here, and assumes that it has FP8 GEMMs. */
static Err open_target(const Config *c, Device **out) {
    const bool gpu = c->device != ON_CPU;
    const DeviceSpec spec = {.kind = DEVICE_CPU,
                             .threads = 1,
                             .fp8_gemms = gpu ? FP8_GEMM_WHOLE | FP8_GEMM_BLOCKS | FP8_GEMM_EXPERTS : 0};
    return device_open(&spec, out);
}

static Err count_step(const RunPlan *p, const Device *target, CallList *all) {
    Device *assumed = NULL;
    if (!target) ERR_RETURN(open_target(p->config, &assumed));
    if (assumed) target = assumed;
    count_calls(p, target, 1, 2 - p->microbatches, all);
    if (p->microbatches > 1) count_calls(p, target, 2, p->microbatches - 1, all);
    device_free(assumed);
    return ERR_OK;
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
    for (const StepWork *w = t->work; w < t->work + t->n; w++) {
        const double ns = w->work.ns * (double)w->calls;
        t->calls += w->calls, t->device_ns += ns;
        t->family_ns[w->family] += ns, t->source_ns[w->source] += ns;
    }
    if (c->cuda_graph_impl == CUDA_GRAPH_NONE) t->host_ns = t->rates->launch_ns * (double)t->calls;
    t->ns = fmax(t->device_ns, t->host_ns);
    const double samples = (double)c->derived.global_batch_size, peak = peak_of(c, t->rates);
    t->tokens_per_second = samples * (double)c->seq_length / (t->ns * 1e-9);
    t->mfu = peak > 0 ? p->flops * samples / (t->ns * 1e-9) / peak : NAN;
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
                                 "rates', which measures bf16, fp32 and --fp8-format hybrid",
                                 lacks.s)
                      : ERR_OK;
    str_free(&lacks);
    return e;
}

Err step_time(const RunPlan *p, const Device *target, const Rates *rates, Arena *arena, StepTime *t) {
    if (p->layout.mesh.world > 1)
        return err_user(
            "--rates predicts the time of a step on one rank, but the layout has %d: remove --rates, or the "
            "options for several ranks",
            p->layout.mesh.world);
    if (p->config->batch_invariant_mode || p->config->fp8_emulated)
        return err_user("rates do not include the kernels of %s: remove it, or --rates",
                        p->config->fp8_emulated ? "--fp8-emulated" : "--batch-invariant-mode");
    if ((p->config->device == ON_CPU) != !strncmp(rates->device, "CPU", 3))
        return err_user("the rates are of %s, but the plan is for a %s: %s --device cpu", rates->device,
                        p->config->device == ON_CPU ? "CPU" : "GPU",
                        p->config->device == ON_CPU ? "remove" : "add");
    CallList all = {.rates = rates};
    ERR_RETURN(count_step(p, target, &all));
    *t = (StepTime){
        .rates = rates, .n = all.n, .work = arena_alloc(arena, (size_t)(all.n + 1) * sizeof *t->work)};
    if (all.n) memcpy(t->work, all.work, (size_t)all.n * sizeof *t->work);
    qsort(t->work, (size_t)all.n, sizeof *t->work, by_name);
    free(all.work);
    add_times(p, t);
    return check_rates(t);
}
