/* One rank's training state, and the step that advances it. The order of a step is Megatron-LM's training.py
 * train_step: zero gradients, forward and backward of every microbatch, norm and clip, update, schedules. */
#pragma once

#include "config/config.h"
#include "data/data.h"
#include "models/model.h"
#include "optim/optim.h"
#include "optim/scaler.h"
#include "optim/schedule.h"
#include "pipeline/executor.h"
#include "run/model_run.h"
#include "train/memory_plan.h"
#include "train/microbatches.h"

typedef struct Trainer {
    ModelRun run;
    const char *data_fingerprint; /* for checkpoints, the caller's; NULL: not known */
    Sync *sync;                   /* NULL: one rank */
    Optimizer *optimizer;
    Scaler scaler;
    Executor *executor;
    Microbatches *microbatches;
    double *results; /* host memory: the loss, and the step counters (param/state.h) */
    /* Progress, all of which is saved in checkpoints. */
    int64_t iteration;        /* updates done or skipped */
    int64_t consumed_samples; /* consumed samples of the training set */
    int64_t consumed_valid_samples;
    int64_t schedule_samples;   /* samples as the schedules count them: skipped steps do not count */
    int64_t skipped_iterations; /* in the whole run: steps whose gradient was not finite */
    /* --async-save: the checkpoint that is being written, and its step; NULL: none. */
    struct CkptSaving *saving;
    int64_t saving_iteration;
} Trainer;

/* Checks of the pipeline that the options' rules cannot express: its stages, and whether every global batch
 * fits its schedule. */
Err trainer_check(const Config *);
/* Allocates the planned memory; plan NULL: address space that gets memory when it is first used. Parameters are zero
 * until registry_init or a load. The run takes ownership of the device; NULL: the CPU. */
Trainer *trainer_new(const Config *, const MemoryPlan *, Comm *, Device *);
/* Tokens in a chunk in which a pass computes its losses, and the number of chunks; 0: no chunks. */
int64_t trainer_loss_chunk(const Trainer *, int64_t *chunks);
/* quantize_layers for a pass. */
int64_t trainer_fp8_linears(const Trainer *, const char **emulation);
/* Model FLOPs of training on `samples` samples. */
double trainer_flops(const Trainer *, int64_t samples);
void trainer_free(Trainer *);
/* The same, but the device stays and is the caller's, for another run. */
Device *trainer_free_but_device(Trainer *);
/* On the null device: runs the part of the training step with the most microbatches that determines its
 * memory (pipeline_shortened), and an evaluation. Returns that part's schedule, of which only the counts stay
 * valid, and the spec of the full step. */
RankSchedule trainer_dry_run(Trainer *, PipelineSpec *);

/* The report on a step of the global batch; before trainer_reduce it has only this rank's part. */
typedef struct StepReport {
    LossSum sum[MODEL_LOSSES];         /* of each loss of the model */
    double loss;                       /* the sum of their means */
    int64_t samples;                   /* samples of all ranks */
    int64_t microbatches;              /* of this rank; with --batch-invariant-mode: samples */
    unsigned router_losses;            /* a bit for each loss that is on */
    double router_loss[ROUTER_LOSSES]; /* mean over layers and microbatches, without the coefficient */
    bool loss_is_nan;                  /* or infinite */
    bool is_reduced, is_read;
    double grad_scale; /* main gradient * grad_scale = gradient of the training loss */
    double lr, weight_decay, loss_scale;
    OptimResult optim;
} StepReport;

/* One step: trainer_begin_step, trainer_microbatches, trainer_reduce, trainer_update. The device may
 * lag the host until trainer_update, which waits for it. The report's numbers from the device are valid
 * after that, or after trainer_read. A data-parallel rank has n microbatches, the same for all its tensor-,
 * context- and pipeline-parallel ranks. */
StepReport trainer_begin_step(Trainer *);
/* Forward and backward of `count` of the step's n microbatches into the main gradients. With a pipeline, and
 * with several losses per token (--calculate-per-token-loss), count must be n. */
void trainer_microbatches(Trainer *, const Batch *, int64_t count, int64_t n, StepReport *);
static inline void trainer_microbatch(Trainer *r, const Batch *b, int64_t n, StepReport *report) {
    trainer_microbatches(r, b, 1, n, report);
}
/* Sums the gradients and the report over the ranks. Call it once per step. */
void trainer_reduce(Trainer *, StepReport *);
/* Waits for the losses. Call it once per step, after all ranks have called trainer_reduce. */
void trainer_read(Trainer *, StepReport *);
/* Reduces if that is not done, clips, updates and advances the schedules. A gradient that is not finite
 * changes no parameter and counts as skipped. */
void trainer_update(Trainer *, StepReport *);
/* Forward only: adds this rank's sums to those of each loss. */
void trainer_evaluate(Trainer *, const Batch *, LossSum[MODEL_LOSSES]);
/* Sums the results of trainer_evaluate over all ranks. */
void trainer_total(const Trainer *, LossSum[MODEL_LOSSES]);
/* loss / weight; 0 without weight. */
double trainer_mean(LossSum);
/* Call it after masters have changed other than by an update: rounds values, gathers those of other ranks. */
void trainer_publish(Trainer *);
/* Sums x[n] over all ranks in place; each rank passes its own part. */
void trainer_sum(const Trainer *, double *x, int64_t n);
