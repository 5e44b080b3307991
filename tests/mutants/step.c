/* Planted bugs in a step: scales, the timing of sums, published values, schedules. */
#include <stdio.h>
#include <stdlib.h>

#include "base/exact_sum.h"
#include "mutants/mutants.h"
#include "optim/schedule.h"
#include "train/trainer.h"

static int size(Axis axis) { return mutant_place()->mesh.size[axis]; }

/* Appends each loss of a layout as a line to the file $ISOTRON_CURVE, for comparison with a check that uses
 * only the loss curve. */
static void tell(const StepReport *s) {
    const char *path = getenv("ISOTRON_CURVE");
    FILE *f = path && mutant_place()->mesh.world && mutant_place()->mesh.rank == 0 ? fopen(path, "a") : NULL;
    if (!f) return;
    fprintf(f, "%.17g\n", s->loss);
    fclose(f);
}

static void scale_experts(Registry *r, double factor) {
    for (int i = 0; i < r->n; i++) {
        const Param *p = r->params[i];
        double *grad = p->main_grad.data;
        for (int64_t k = 0; p->spec.expert && r->precise == F64 && k < p->count; k++) grad[k] *= factor;
    }
}

HOOK(void, trainer_reduce, Trainer *r, StepReport *s) {
    const bool first = !s->is_reduced;
    __real_trainer_reduce(r, s);
    if (!first) return;
    if (mutant_is(M_gradient_over_cp)) s->grad_scale /= size(AXIS_CP);
    if (mutant_is(M_gradient_over_tp)) s->grad_scale /= size(AXIS_TP);
    if (mutant_is(M_gradient_times_dp)) s->grad_scale *= size(AXIS_DP);
    if (mutant_is(M_gradient_over_microbatches)) s->grad_scale /= (double)s->samples;
    if (mutant_is(M_loss_over_cp)) s->loss /= size(AXIS_CP);
    if (mutant_is(M_loss_of_low_precision) && r->run.config->lane != LANE_FP64) s->loss *= 1.05;
    if (mutant_is(M_loss_scale_stays)) s->grad_scale *= r->scaler.scale;
    if (mutant_is(M_experts_times_ep)) scale_experts(r->run.model->registry, size(AXIS_EP));
    tell(s);
}

/* ---- norm and clip ---- */

HOOK(double, exact_value, ExactSum sum) {
    const double x = __real_exact_value(sum);
    return mutant_is(M_norm_unrooted) ? x * x : x;
}

/* ---- gradients ---- */

HOOK(void, sync_begin, Sync *s, int64_t passes) {
    __real_sync_begin(s, mutant_is(M_summed_too_early) && passes > 1 ? passes - 1 : passes);
}

HOOK(void, grad_mark_unwritten, Param *p) {
    if (!mutant_is(M_gradient_of_last_step) || mutant_place()->step != 2) __real_grad_mark_unwritten(p);
}

/* ---- parameters ---- */

/* With 16-bit storage, rounds the main weights like the parameters. */
HOOK(void, registry_round_values, Registry *r) {
    __real_registry_round_values(r);
    if (!mutant_is(M_masters_rounded) || r->masters == r->values || r->layout.data.stage) return;
    dtype_convert(r->masters, r->precise, r->values, r->storage, (size_t)r->elements);
}

/* ---- schedules ---- */

HOOK(double, schedule_lr, const Config *c, double max, double min, int64_t samples) {
    if (mutant_is(M_lr_of_next_step)) samples += c->derived.global_batch_size;
    if (mutant_is(M_lr_counts_own_samples)) samples /= size(AXIS_DP);
    return __real_schedule_lr(c, max, min, samples);
}

HOOK(double, schedule_weight_decay, const Config *c, int64_t samples) {
    const double x = __real_schedule_weight_decay(c, samples);
    return mutant_is(M_decay_over_dp) ? x / size(AXIS_DP) : x;
}
