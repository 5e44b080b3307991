/* The inputs to a model's forward pass. */
#pragma once

#include "data/batch.h"
#include "ops/paged_attention.h"
#include "tape/tape.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

enum { MODEL_LOSSES = 16 }; /* maximum number of losses and counts in a model */

/* The page pools that branches keep during generation (BranchOps.caches), in layer order. */
typedef struct Cache {
    Tensor *pool; /* [rows,1,g,r,d] */
    int n;
    /* [rows,1,1,1,h]: the pool of the stack's outputs for the next stack; NULL if there is none */
    Tensor *output;
    void *block; /* memory for all pools */
    size_t bytes;
    /* positions: rows for the tokens in the current forward pass; encoder: rows for the encoder's positions */
    Pages positions, encoder;
    Tensor *slot; /* I64 [s]: the row of each token's request in pools that have a row for each request */
} Cache;

typedef struct Feed {
    union {
        struct {
/* The fields of a batch (data/fields.def). The tensors' dimensions are the fields' extents. Integer fields are I64. A
 * missing field is NULL. document_start defaults to 0; position_ids and labels have no defaults. */
#define FIELD(name, ...) Tensor *name;
#include "data/fields.def"
#undef FIELD
        };
        Tensor *field[FIELDS];
    };
    /* dloss[i], [b, s] or [b, 1], is the gradient with respect to the model's loss i (ModelPlan) for each token or
     * sample. An unknown gradient is NULL. */
    Tensor *dloss[MODEL_LOSSES];
    /* [s, b, h]: the output of the previous stack, such as an encoder; NULL if there is none */
    Tensor *encoded;
    /* NULL in training. In generation, the batch is one stream of tokens from several requests, and branches
     * store rows for these tokens. A forward pass with encoder_tokens stores rows for the encoder's
     * positions. Later forward passes read these rows. */
    Cache *cache;
    Tensor *chosen; /* I64 [n]: the stream positions whose logits are needed; NULL means all positions */
    bool releases;  /* true in generation: no backward pass follows, so layers free their activations */
} Feed;

/* A field of a microbatch, and the name by which a part of the model reads it. */
typedef struct FeedField {
    FieldId name, field;
    int64_t column; /* index of the value to read, if the field has several values per element */
} FeedField;

/* Returns a copy of the feed. The copy has only these fields, under the names by which they are read, or all fields if
 * n is 0. */
Feed *feed_fields(Tape *, const Feed *, const FeedField *, int n);

/* Copies a batch's fields, which must all be integers, to feed_bytes(batch) bytes of host memory. The feed then points
 * to the tensors `field`; their data is at `memory` on the device. The caller must copy the bytes to `memory`. */
size_t feed_bytes(const Batch *);
void feed_write(Feed *, Tensor field[FIELDS], const Batch *, char *memory, char *host);
