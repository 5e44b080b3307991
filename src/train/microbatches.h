/* The microbatches of a step (or single samples of them) on this rank. Their fields are copied to one block
 * of device memory, all before the first runs, without waiting; the executor runs them. On a GPU one rank
 * without dropout can record a microbatch as a CUDA graph and replay it (--cuda-graph-impl local). */
#ifndef ISOTRON_TRAIN_MICROBATCHES_H
#define ISOTRON_TRAIN_MICROBATCHES_H

#include "config/config.h"
#include "pipeline/executor.h"

typedef struct Microbatches Microbatches;

/* All arguments must outlive it. */
Microbatches *microbatches_new(const Config *, const RunContext *, const Model *, Executor *,
                               const PipelineLayout *);
void microbatches_free(Microbatches *);

/* Allocates device memory for n microbatches of `tokens` tokens each. */
void microbatches_reserve(Microbatches *, int64_t n, int64_t tokens);
/* Makes room for n microbatches of `tokens` tokens each; discards earlier ones. */
void microbatches_begin(Microbatches *, int64_t n, int64_t tokens);
/* Weights of losses in the gradient. */
typedef struct LossWeights {
    double loss; /* of a token's loss */
    double aux;  /* of a router's loss, which is a mean over tokens */
} LossWeights;
/* Sets microbatch `number` to this batch. first_sample: the index of its first sample in the whole run. */
void microbatches_add(Microbatches *, int64_t number, const Batch *, LossWeights, int64_t first_sample);
/* Runs all microbatches: forward and backward into the main gradients, or forward only. With `counts_loss`
 * adds the sum of loss * mask to the loss. */
void microbatches_train(Microbatches *, bool counts_loss);
void microbatches_evaluate(Microbatches *, bool counts_loss);
/* The schedule of the last n microbatches on this rank, until the next microbatches_begin. */
RankSchedule microbatches_schedule(Microbatches *, bool forward_only, PipelineSpec *);

/* The sum of loss * mask, on the device: F64 [1]. */
void microbatches_set_loss(Microbatches *, double sum);
const Tensor *microbatches_loss(const Microbatches *);
size_t microbatches_bytes(const Microbatches *); /* of device memory */
/* Tells that the host has waited for the device, so that the next microbatches_begin need not. */
void microbatches_waited(Microbatches *);

#endif
