/* A microbatch, which the executor passes to a model. */
#pragma once

#include "nn/feed.h"
#include "tape/tape.h"

typedef struct Microbatch {
    MicrobatchContext context;
    Feed feed;
    /* The memory of the feed's fields. Real numbers have the type of the loss. ndim is 0 if the model does not read
     * the field. */
    Tensor field[FIELDS];
    /* The weights and the gradients (the feed's dloss) of each loss, [b, s] or [b, 1], in the type of the loss. The
     * counts, which have no gradients, follow the losses, and their weights are those of losses. */
    Tensor weights[MODEL_LOSSES], loss_gradients[MODEL_LOSSES];
    int n_losses;
    char *block; /* the device memory of all these tensors */
} Microbatch;
