/* What a decoder's forward reads beside its parameters. */
#ifndef ISOTRON_NN_INPUT_H
#define ISOTRON_NN_INPUT_H

#include "tensor/tensor.h"

/* Keys and values of earlier positions, one pair per layer (generation). */
typedef struct KvCache {
    Tensor *k, *v;  /* [layers] tensors [capacity, b, g, 1, d] */
    int64_t length; /* positions filled, the same for all layers and samples */
} KvCache;

typedef struct ModelInput {
    Tensor *tokens;   /* I64 [b, s] */
    Tensor *position; /* I64 [b, s]: position of each token in its document, for RoPE and learned positions */
    Tensor
        *first_key; /* I64 [b, s]: the first key a query may see (packed documents, left padding); NULL: 0 */
    Tensor *dloss;  /* [b, s]: the gradient that each token's loss will get; NULL: not known */
    KvCache *cache; /* NULL in training; otherwise the new keys are appended at `length`, which the caller
                       advances */
} ModelInput;

#endif
