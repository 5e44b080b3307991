/* One rank's training state, and the step that advances it. The order of a step is Megatron-LM's training.py
 * train_step: zero gradients, forward and backward of every microbatch, norm and clip, update, schedules. */
#ifndef ISOTRON_TRAIN_TRAINER_H
#define ISOTRON_TRAIN_TRAINER_H

#include "config/config.h"
#include "data/data.h"
#include "models/model.h"
#include "optim/optim.h"
#include "optim/scaler.h"
#include "optim/schedule.h"
#include "pipeline/executor.h"
#include "tape/tape.h"
#include "train/memory_plan.h"
#include "train/microbatches.h"

typedef struct Trainer {
    const Config *config; /* the caller's, both; they outlive the run */
    const Derived *derived;
    Comm *comm; /* the caller's; NULL: one rank */
    Layout layout;
    RunContext context;
    Device *device; /* the run's own */
    Model *model;
    Sync *sync; /* NULL: one rank */
    Optimizer *optimizer;
    Scaler scaler;
    PipelineLayout pipeline;
    Executor *executor;
    Microbatches *microbatches;
    Arena *arena;    /* of the pipeline's stages */
    double *results; /* host memory: the loss, and the step counters (param/state.h) */
    /* Progress; all of it is in a checkpoint. */
    int64_t iteration;        /* updates done or skipped */
    int64_t consumed_samples; /* of the training set */
    int64_t consumed_valid_samples;
    int64_t schedule_samples;   /* what the schedules count: skipped steps do not advance them */
    int64_t skipped_iterations; /* in the whole run: the gradient was not finite */
    /* --async-save: the checkpoint that is being written, and its step; NULL: none is. */
    struct CkptSaving *saving;
    int64_t saving_iteration;
} Trainer;

/* What the options' rules cannot say about the pipeline: its stages, and whether every global batch fits its
 * schedule. */
Err trainer_check(const Config *, const Derived *);
/* The place of a rank among those of the options. */
Layout trainer_layout(const Config *, int rank, int world);
/* Takes the planned memory; NULL: address space that is backed as it is touched. Parameters are zero until
 * registry_init or a load. The device becomes the run's; NULL: the CPU. */
Trainer *trainer_new(const Config *, const Derived *, const MemoryPlan *, Comm *, Device *);
/* Tokens of the chunks in which a pass computes its losses, and how many chunks there are; 0: no chunks. */
int64_t trainer_loss_chunk(const Trainer *, int64_t *chunks);
/* quantize_layers of a pass. */
int64_t trainer_fp8_linears(const Trainer *, const char **emulation);
/* Model FLOPs of training on so many samples. */
double trainer_flops(const Trainer *, int64_t samples);
void trainer_free(Trainer *);
/* On the null device: as much of the training step with the most microbatches as decides its memory
 * (pipeline_shortened), and an evaluation. Returns that part's schedule, of which only the counts stay valid,
 * and the whole step's spec. */
RankSchedule trainer_dry_run(Trainer *, PipelineSpec *);

/* Of the global batch; before trainer_reduce what this rank has seen of it. */
typedef struct StepReport {
    double loss_sum;                   /* of loss * mask, nats */
    double tokens;                     /* sum of mask */
    double loss;                       /* loss_sum / tokens */
    int64_t samples;                   /* always of all ranks */
    int64_t microbatches;              /* of this rank; with --batch-invariant-mode each sample is one */
    unsigned router_losses;            /* a bit of each that is on */
    double router_loss[ROUTER_LOSSES]; /* mean over layers and microbatches, without the coefficient */
    bool loss_is_nan, is_reduced, is_read;
    double grad_scale; /* main gradient * grad_scale = gradient of the loss that is trained on */
    double lr, weight_decay, loss_scale;
    OptimResult optim;
} StepReport;

/* One step: trainer_begin_step, trainer_microbatches, trainer_reduce, trainer_update. The device may be
 * behind the host until trainer_update, which waits for it; what it computes for the report is there then, or
 * after trainer_read. A data-parallel rank has n microbatches, the same for all its tensor-, context- and
 * pipeline-parallel ranks. */
StepReport trainer_begin_step(Trainer *);
/* Forward and backward of `count` of the step's n microbatches into the main gradients; over a pipeline count
 * is n. */
void trainer_microbatches(Trainer *, const Batch *, int64_t count, int64_t n, StepReport *);
static inline void trainer_microbatch(Trainer *r, const Batch *b, int64_t n, StepReport *report) {
    trainer_microbatches(r, b, 1, n, report);
}
/* Sums gradients over the ranks, and the report, which takes its numbers; once. */
void trainer_reduce(Trainer *, StepReport *);
/* Waits for the losses; once. All ranks have called trainer_reduce before. */
void trainer_read(Trainer *, StepReport *);
/* Reduces unless that is done, clips, updates and advances the schedules. A gradient that is not finite changes no
 * parameter and counts as skipped. */
void trainer_update(Trainer *, StepReport *);
/* Forward only: adds sum of loss * mask, as far as this rank knows it, to *loss and sum of mask to *tokens. */
void trainer_evaluate(Trainer *, const Batch *, double *loss, double *tokens);
/* Updates what states derive from parameters (FP8 weights). Steps and evaluations do it themselves; any other
 * forward needs it once the parameters have their values. */
void trainer_refresh_states(Trainer *, bool training);
/* Such sums of one rank into those of all ranks. */
void trainer_total(const Trainer *, double *loss, double *tokens);
/* After masters have changed otherwise than by an update: rounds values, gathers what other ranks hold. */
void trainer_publish(Trainer *);
/* Sums x[n] over all ranks in place; each passes what it alone knows. */
void trainer_sum(const Trainer *, double *x, int64_t n);

#endif
