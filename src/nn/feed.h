/* The inputs of a model's forward. */
#ifndef ISOTRON_NN_FEED_H
#define ISOTRON_NN_FEED_H

#include "data/batch.h"
#include "tensor/tensor.h"

enum { MODEL_LOSSES = 2 }; /* at most */

/* Keys and values of earlier positions, one pair per layer, of this rank's g groups (generation). */
typedef struct KvCache {
    Tensor *k, *v; /* [layers] tensors [capacity, b, g, 1, d]; ndim 0: a layer without attention */
    Tensor
        *cross;  /* [layers] keys and values of cross-attention, [encoder s, b, g*2*d]; ndim 0: it has none */
    void *block; /* memory of all of them */
    size_t bytes;
    int64_t length; /* positions filled, the same for all layers and samples */
} KvCache;

typedef struct Feed {
    union {
        struct {
/* The fields of a batch with their extents as dimensions (data/fields.def), I64 for integers; NULL: not given.
 * document_start defaults to 0. Without position_ids or labels, nothing may read them. */
#define FIELD(name, ...) Tensor *name;
#include "data/fields.def"
#undef FIELD
        };
        Tensor *field[FIELDS];
    };
    /* For each of the model's losses (ModelPlan), [b, s] or [b, 1]: the gradient of each token's or sample's
     * loss; NULL: not known. */
    Tensor *dloss[MODEL_LOSSES];
    Tensor *encoded; /* [encoder s, b, h], the output of the encoder, for cross-attention; NULL: none */
    /* NULL in training. Otherwise new keys and values are appended at `length`; the caller advances it. The keys
     * and values of cross-attention are stored by the forward that has encoder_tokens, and read by later ones. */
    KvCache *cache;
    bool releases; /* no backward follows: each layer releases its activations (generation) */
} Feed;

#endif
