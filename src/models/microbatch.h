/* A microbatch: the data that the executor passes to a model. */
#pragma once

#include "nn/feed.h"
#include "tape/tape.h"

typedef struct Microbatch {
    MicrobatchContext context;
    Feed feed;
    /* The memory for the feed's fields. Real numbers have the loss's type. ndim is 0 if the model does not read the
     * field. */
    Tensor field[FIELDS];
    /* The weights and the gradients (the feed's dloss) of each loss, [b, s] or [b, 1], in the loss's type. The counts
     * follow the losses; they have no gradients, and they use the losses' weights. */
    Tensor weights[MODEL_LOSSES], loss_gradients[MODEL_LOSSES];
    int n_losses;
    char *block; /* the device memory for all these tensors */
} Microbatch;
