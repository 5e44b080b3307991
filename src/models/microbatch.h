/* A microbatch as the executor hands it to a model. */
#ifndef ISOTRON_MODELS_MICROBATCH_H
#define ISOTRON_MODELS_MICROBATCH_H

#include "nn/feed.h"
#include "tape/tape.h"

typedef struct Microbatch {
    MicrobatchContext context;
    Feed feed;
    Tensor field[FIELDS];  /* [b, s], the memory of the feed's fields; the loss mask has the loss's type */
    Tensor loss_gradients; /* [b, s] in the loss's type: the gradient of each token's loss */
} Microbatch;

#endif
