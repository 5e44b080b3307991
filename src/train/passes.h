/* The passes of a step: what the model runs at once, a microbatch or one sample of it. Their batches are
 * copied to one block of device memory, all before the first runs, without waiting; the executor runs them;
 * on a GPU one rank without dropout can record the work of a pass and play it again (--cuda-graph-impl
 * local). Part of a Run. */
#ifndef ISOTRON_TRAIN_PASSES_H
#define ISOTRON_TRAIN_PASSES_H

#include "train/run.h"

ExecutorCalls passes_calls(Run *);
/* Room for the passes of one call, of `tokens` each; what was there is forgotten. */
void passes_begin(Run *, int64_t passes, int64_t tokens);
/* Of the gradient that is trained on: of a token's loss, and of a router's loss, which is a mean over tokens.
 */
typedef struct PassWeight {
    double loss, aux;
} PassWeight;
/* Pass `number` runs samples [first, first + n) of a microbatch; first_sample is the first one's in the run.
 */
void passes_add(Run *, int64_t number, const Batch *, int64_t first, int64_t n, PassWeight,
                int64_t first_sample);
/* What r->loss_sum begins with. */
void passes_set_loss(Run *, double sum);
/* Runs them, and adds the sum of loss * mask to r->loss_sum if somebody wants it. */
void passes_play(Run *, int64_t passes, bool forward_only, bool counts_loss);
void passes_free(Run *);

#endif
