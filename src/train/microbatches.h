/* The microbatches of a step (or single samples of them) on this rank. Their fields are copied to one block
 * of device memory, all before the first runs, without waiting; the executor runs them. On a GPU one rank
 * without dropout can record a microbatch as a CUDA graph and replay it (--cuda-graph-impl local). */
#pragma once

#include "config/config.h"
#include "pipeline/executor.h"

typedef struct Microbatches Microbatches;

/* All arguments must outlive it. */
Microbatches *microbatches_new(const Config *, const RunContext *, const Model *, Executor *,
                               const PipelineLayout *);
void microbatches_free(Microbatches *);

/* Allocates device memory for n microbatches of the sizes of a batch, whose values are not read. */
void microbatches_reserve(Microbatches *, int64_t n, const Batch *like);
/* Makes room for n such microbatches; discards earlier ones. */
void microbatches_begin(Microbatches *, int64_t n, const Batch *like);
/* Weights of losses in the gradient. */
typedef struct LossWeights {
    double loss[MODEL_LOSSES]; /* weight of a token's or sample's loss */
    double aux;                /* of a router's loss, which is a mean over tokens */
} LossWeights;
/* Sets microbatch `number` to this batch. first_sample: the index of its first sample in the whole run. */
void microbatches_add(Microbatches *, int64_t number, const Batch *, LossWeights, int64_t first_sample);
/* Runs all microbatches: forward and backward into the main gradients, or forward only. With `counts_loss`
 * adds the sum of each loss * its weights to the losses. */
void microbatches_train(Microbatches *, bool counts_loss);
void microbatches_evaluate(Microbatches *, bool counts_loss);
/* The schedule of the last n microbatches on this rank, until the next microbatches_begin. */
RankSchedule microbatches_schedule(Microbatches *, bool forward_only, PipelineSpec *);

/* A sum of loss * weight, in nats, and the sum of the weights. */
typedef struct LossSum {
    double loss, weight;
} LossSum;
/* The sums of each loss * its weights, on the device. The weights are not set. */
void microbatches_set_losses(Microbatches *, const LossSum[MODEL_LOSSES]);
const double *microbatches_losses(const Microbatches *);
size_t microbatches_bytes(const Microbatches *); /* bytes of device memory */
/* Tells that the host has waited for the device, so that the next microbatches_begin need not. */
void microbatches_waited(Microbatches *);
