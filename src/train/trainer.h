/* One rank's training state, and the step that advances it. A step runs in the same order as Megatron-LM's train_step
 * (training.py): zero gradients, forward and backward passes of every microbatch, norm and clip, update, schedules. */
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
    /* the data's fingerprint for checkpoints (NULL if it is unknown); the string must outlive the trainer */
    const char *data_fingerprint;
    Sync *sync; /* NULL if there is only one rank */
    Optimizer *optimizer;
    Scaler scaler;
    Executor *executor;
    Microbatches *microbatches;
    double *results;           /* host memory: the losses, and the step counters (param/state.h) */
    double *layer_router_loss; /* [ROUTER_LOSSES, layers]; NULL without --moe-per-layer-logging */
    int64_t layers;            /* number of layers in all stacks, on all ranks */
    /* The progress of the run: the numbers that checkpoints contain. */
    int64_t iteration;        /* number of steps, including skipped steps */
    int64_t consumed_samples; /* number of consumed training samples */
    int64_t consumed_valid_samples;
    /* number of samples that count for the schedules, without those of skipped steps */
    int64_t schedule_samples;
    /* number of steps in the entire run that were skipped because the gradient was not finite */
    int64_t skipped_iterations;
    /* With --async-save: the checkpoint that is being written (NULL if there is none), and its step. */
    struct CkptSaving *saving;
    int64_t saving_iteration;
} Trainer;

/* Checks what option rules cannot: the frozen parameters, the pipeline's stages, and the schedule's support for every
 * global batch. */
Err trainer_check(const Config *);
/* Allocates the planned memory. If the plan is NULL, only address space is reserved, and memory is allocated at
 * its first use. Parameters are zero until registry_init or a load. Takes ownership of the device; NULL means
 * the CPU. */
Trainer *trainer_new(const Config *, const MemoryPlan *, Comm *, Device *);
/* Returns the number of tokens whose losses a pass computes together (a chunk), and sets *chunks to the number of
 * chunks. Both numbers are 0 if losses are not computed in chunks. */
int64_t trainer_loss_chunk(const Trainer *, int64_t *chunks);
/* Calls quantize_layers (ops/fp8.h) for the tokens of a pass. */
int64_t trainer_fp8_linears(const Trainer *, const char **emulation);
/* Returns the model FLOPs for training on `samples` samples. */
double trainer_flops(const Trainer *, int64_t samples);
void trainer_free(Trainer *);
/* Frees everything except the device, and returns the device. The caller owns the device and may use it for
 * another run. */
Device *trainer_free_but_device(Trainer *);
/* On the null device, runs the part of the largest training step that determines its memory (pipeline_shortened), and
 * an evaluation. Returns the schedule of this part, in which only the counts remain valid. Sets the PipelineSpec to the
 * spec of the full step. */
RankSchedule trainer_dry_run(Trainer *, PipelineSpec *);
/* Runs every op and every operation between ranks of a training step with the given number of microbatches on the null
 * device. The gathers of updated parameters come first, as if they followed the previous step. Operations between ranks
 * start only if the Comm is observed (comm_observe). */
void trainer_dry_step(Trainer *, int64_t microbatches);

/* The report on a training step. Before trainer_reduce, the report covers only this rank's part. */
typedef struct StepReport {
    LossSum sum[MODEL_LOSSES]; /* the weighted sum of each of the model's losses */
    double loss;               /* the sum of the mean losses, without auxiliary losses */
    int64_t samples;           /* number of samples on all ranks */
    /* number of this rank's microbatches or, with --batch-invariant-mode, number of samples in them */
    int64_t microbatches;
    unsigned router_losses; /* a mask with a bit for each enabled loss */
    /* means over layers and microbatches, not multiplied by the coefficients */
    double router_loss[ROUTER_LOSSES];
    /* With --moe-per-layer-logging: [ROUTER_LOSSES, layers], means over microbatches, NaN for a layer without
     * experts. Valid until the next step. NULL if the option is not given. */
    const double *layer_router_loss;
    /* the largest attention score before the cap, or 0; set only with QkClipSpec.measures */
    double max_score;
    bool loss_is_nan; /* whether the loss is NaN or infinite */
    bool is_reduced, is_read;
    double grad_scale; /* main gradient * grad_scale = gradient of the training loss */
    double lr, weight_decay, loss_scale;
    OptimResult optim;
} StepReport;

/* A step consists of trainer_begin_step, trainer_microbatches, trainer_reduce and trainer_update. The device
 * runs asynchronously until trainer_update waits for it. Numbers in the report that come from the device are
 * valid after trainer_update or trainer_read. A data-parallel rank has n microbatches, and all its tensor-,
 * context- and pipeline-parallel ranks run the same microbatches. */
StepReport trainer_begin_step(Trainer *);
/* For `count` of the step's n microbatches, runs the forward and backward passes, which add to the main gradients. If
 * there is a pipeline, or if there are several losses with --calculate-per-token-loss, `count` must be
 * n. */
void trainer_microbatches(Trainer *, const Batch *, int64_t count, int64_t n, StepReport *);
static inline void trainer_microbatch(Trainer *r, const Batch *b, int64_t n, StepReport *report) {
    trainer_microbatches(r, b, 1, n, report);
}
/* Sums the gradients and the report over the ranks. Call this function once per step. */
void trainer_reduce(Trainer *, StepReport *);
/* Waits for the losses. Call this function once per step, after all ranks have called trainer_reduce. */
void trainer_read(Trainer *, StepReport *);
/* Calls trainer_reduce if necessary, clips the gradient, updates the parameters, and advances the schedules.
 * If the gradient is not finite, no parameter changes and the step counts as skipped. */
void trainer_update(Trainer *, StepReport *);
/* Runs only the forward pass, and adds this rank's weighted sum of each loss to the given LossSum array. */
void trainer_evaluate(Trainer *, const Batch *, LossSum[MODEL_LOSSES]);
/* Sums the results of trainer_evaluate over all ranks. */
void trainer_total(const Trainer *, LossSum[MODEL_LOSSES]);
/* Returns loss / max(weight, 1). */
double trainer_mean(LossSum);
/* Rounds the masters to values, and gathers the values of the other ranks. Call this function after every
 * change of the masters except an update. */
void trainer_publish(Trainer *);
/* Sums x[n] over all ranks in place. Each rank passes its summands. */
void trainer_sum(const Trainer *, double *x, int64_t n);
