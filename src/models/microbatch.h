/* A microbatch, which the executor passes to a model. */
#pragma once

#include "nn/feed.h"
#include "tape/tape.h"

typedef struct Microbatch {
    MicrobatchContext context;
    Feed feed;
    /* The memory of the feed's fields; real numbers have the type of the loss. ndim 0: the model does not read
     * it. */
    Tensor field[FIELDS];
    /* The weights and the gradients (the feed's dloss) of each loss, in the loss's type, [b, s] or [b, 1]. Counts have
     * only weights. */
    Tensor weights[MODEL_LOSSES], loss_gradients[MODEL_LOSSES];
    int n_losses, n_counts;
    char *block; /* device memory of all these tensors */
} Microbatch;
