/* A microbatch, which the executor passes to a model. */
#pragma once

#include "nn/feed.h"
#include "tape/tape.h"

typedef struct Microbatch {
    MicrobatchContext context;
    Feed feed;
    /* The memory of the feed's fields. Real numbers have the dtype of the loss. If ndim is 0, the model does
     * not read the field. */
    Tensor field[FIELDS];
    /* The weights and the gradients (the feed's dloss) of each loss, [b, s] or [b, 1], in the dtype of the
     * loss. The counts, which have no gradients, follow the losses; their weights are those of losses. */
    Tensor weights[MODEL_LOSSES], loss_gradients[MODEL_LOSSES];
    int n_losses;
    char *block; /* device memory of all these tensors */
} Microbatch;
