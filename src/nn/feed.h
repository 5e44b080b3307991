/* What a model's forward reads besides its parameters. */
#ifndef ISOTRON_NN_FEED_H
#define ISOTRON_NN_FEED_H

#include "data/batch.h"
#include "tensor/tensor.h"

/* Keys and values of earlier positions, one pair per layer (generation). */
typedef struct KvCache {
    Tensor *k, *v; /* [layers] tensors [capacity, b, g, 1, d]; ndim 0: a layer without attention */
    void *block;   /* all of them */
    size_t bytes;
    int64_t length; /* positions filled, the same for all layers and samples */
} KvCache;

typedef struct Feed {
    union {
        struct {
/* [b, s] of the fields of a batch (data/fields.def), I64 for integers; NULL: not given. Without
 * document_start it is 0, without position_ids or labels nothing may read them. */
#define FIELD(name, type) Tensor *name;
#include "data/fields.def"
#undef FIELD
        };
        Tensor *field[FIELDS];
    };
    Tensor *dloss;  /* [b, s]: the gradient that each token's loss will get; NULL: not known */
    KvCache *cache; /* NULL in training. Otherwise new keys are appended at `length`, which the caller
                       advances */
} Feed;

#endif
