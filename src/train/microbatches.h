/* Runs the microbatches of a step on this rank. With --batch-invariant-mode, the samples of a microbatch run
 * one by one. All fields are copied to one block of device memory before the first microbatch runs, and the
 * host does not wait for the copies. On a GPU, a run without dropout can replay microbatches or steps as CUDA
 * graphs (--cuda-graph-impl local). */
#pragma once

#include "config/config.h"
#include "pipeline/executor.h"

typedef struct Microbatches Microbatches;

/* Creates the microbatches. All arguments must outlive the result. */
Microbatches *microbatches_new(const Config *, const RunContext *, const Model *, Executor *,
                               const PipelineLayout *);
void microbatches_free(Microbatches *);

/* Allocates device memory for n microbatches with the shape of `like`. Does not read the values in `like`. */
void microbatches_reserve(Microbatches *, int64_t n, const Batch *like);
/* Begins a list of n microbatches with the same shape as `like`. Discards earlier microbatches. */
void microbatches_begin(Microbatches *, int64_t n, const Batch *like);
/* The factors by which losses are multiplied in the gradient. */
typedef struct LossWeights {
    double loss[MODEL_LOSSES]; /* weight of a token's or a sample's loss */
    double aux;                /* weight of a router loss, which is a mean over tokens */
} LossWeights;
/* Sets microbatch `number` to the given batch. first_sample is the index of the batch's first sample in the
 * entire run. */
void microbatches_add(Microbatches *, int64_t number, const Batch *, LossWeights, int64_t first_sample);
/* Runs all microbatches: forward and backward passes that add to the main gradients, or only forward passes. If
 * `counts_loss` is true, adds each loss's weighted sum to the losses on the device. */
void microbatches_train(Microbatches *, bool counts_loss);
void microbatches_evaluate(Microbatches *, bool counts_loss);
/* Returns this rank's schedule for the current list of microbatches. The schedule is valid until the next
 * microbatches_begin. */
RankSchedule microbatches_schedule(Microbatches *, bool forward_only, PipelineSpec *);

/* The sum of loss * weight, in nats, and the sum of the weights. */
typedef struct LossSum {
    double loss, weight;
} LossSum;
/* Sets each loss's weighted sum on the device to LossSum.loss. LossSum.weight is not used. */
void microbatches_set_losses(Microbatches *, const LossSum[MODEL_LOSSES]);
const double *microbatches_losses(const Microbatches *);
size_t microbatches_bytes(const Microbatches *); /* returns the size of device memory in bytes */
/* Records that the host has waited for the device, so that the next microbatches_begin does not wait. */
void microbatches_waited(Microbatches *);
