/* One rank's training state, and the step that advances it. The order of a step is Megatron-LM's training.py
 * train_step: zero gradients, forward and backward of every microbatch, norm and clip, update, schedules. */
#ifndef ISOTRON_TRAIN_RUN_H
#define ISOTRON_TRAIN_RUN_H

#include "config/config.h"
#include "data/data.h"
#include "models/gpt.h"
#include "optim/optim.h"
#include "optim/scaler.h"
#include "optim/schedule.h"
#include "tape/tape.h"

/* Bytes that a run will take, known before it takes any (a dry run on the null device). */
typedef struct MemoryPlan {
    size_t parameters; /* values, main gradients, masters */
    size_t optimizer, slots, transient, tables;
} MemoryPlan;

MemoryPlan run_plan_memory(const Config *, const Derived *);
size_t memory_plan_total(const MemoryPlan *);

typedef struct Run {
    const Config *config; /* the caller's, both; they outlive the run */
    const Derived *derived;
    RunContext context;
    Device *device;
    Gpt *model;
    Optimizer *optimizer;
    Scaler scaler;
    Space *slot, *transient;
    Tape *tape;
    /* Progress; all of it is in a checkpoint. */
    int64_t iteration;        /* updates done or skipped */
    int64_t consumed_samples; /* of the training set */
    int64_t consumed_valid_samples;
    int64_t schedule_samples;   /* what the schedules count: skipped steps do not advance them */
    int64_t skipped_iterations; /* in the whole run: the gradient was not finite */
} Run;

/* Takes the planned memory; NULL: address space that is backed as it is touched. Parameters are zero until
 * registry_init or a load. */
Run *run_new(const Config *, const Derived *, const MemoryPlan *);
void run_free(Run *);

typedef struct StepReport {
    double loss_sum; /* of loss * mask over the global batch, nats */
    double tokens;   /* sum of mask */
    double loss;     /* loss_sum / tokens */
    int64_t samples;
    bool loss_is_nan;
    double grad_scale; /* main gradient * grad_scale = gradient of the loss that is trained on */
    double lr, weight_decay, loss_scale;
    OptimResult optim;
} StepReport;

/* One step: run_begin, run_microbatch for each of the step's n microbatches, run_update. */
StepReport run_begin(Run *);
/* Forward and backward into the main gradients. */
void run_microbatch(Run *, const Batch *, int64_t n, StepReport *);
/* Clips, updates and advances the schedules. A gradient that is not finite changes no parameter and counts as
 * skipped. */
void run_update(Run *, StepReport *);
/* Forward only: adds sum of loss * mask to *loss and sum of mask to *tokens. */
void run_evaluate(Run *, const Batch *, double *loss, double *tokens);

/* Views of a batch's arrays for the model; `tensors` holds the headers. */
typedef struct BatchTensors {
    Tensor tokens, labels, position, first_key;
    ModelInput input;
} BatchTensors;
/* `packed`: attention stays inside documents (--reset-attention-mask). */
void batch_tensors(const Batch *, bool packed, BatchTensors *);

#endif
