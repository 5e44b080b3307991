/* The inputs of the forward pass of a model. */
#pragma once

#include "data/batch.h"
#include "ops/paged_attention.h"
#include "tape/tape.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

enum { MODEL_LOSSES = 16 }; /* maximum number of losses and counts of a model */

/* The pools of pages that branches keep during generation (BranchOps.caches), in the order of the layers. */
typedef struct Cache {
    Tensor *pool; /* [rows,1,g,r,d] */
    int n;
    /* [rows,1,1,1,h]: the one of these pools that contains the stack's outputs, which the next stack reads; or
     * NULL */
    Tensor *output;
    void *block; /* memory of all pools */
    size_t bytes;
    /* positions: the rows of the current forward's tokens; encoder: the rows of the encoder's positions */
    Pages positions, encoder;
} Cache;

typedef struct Feed {
    union {
        struct {
/* The fields of a batch (data/fields.def). The dimensions of the tensors are their extents. Integer fields are I64. A
 * missing field is NULL. document_start defaults to 0; position_ids and labels have no defaults. */
#define FIELD(name, ...) Tensor *name;
#include "data/fields.def"
#undef FIELD
        };
        Tensor *field[FIELDS];
    };
    /* dloss[i], [b, s] or [b, 1], is the gradient with respect to loss i of the model (ModelPlan) for each
     * token or sample. An unknown gradient is NULL. */
    Tensor *dloss[MODEL_LOSSES];
    /* [s, b, h]: the output of the previous stack, such as an encoder; NULL if there is none */
    Tensor *encoded;
    /* NULL in training. Otherwise the batch is one stream of the tokens of several requests, and branches store the
     * rows of these tokens. A forward with encoder_tokens stores the rows of the encoder's positions; later
     * forwards read these rows. */
    Cache *cache;
    Tensor *chosen; /* I64 [n]: the positions of the stream whose logits are needed; NULL for all positions */
    bool releases;  /* no backward follows, as in generation, so each layer frees its activations */
} Feed;

/* A field of a microbatch, and the name under which a part of a model reads it. */
typedef struct FeedField {
    FieldId name, field;
    int64_t column; /* index of the number that is read, if the field has several numbers per element */
} FeedField;

/* Returns a copy of the feed with only these fields, under the names by which they are read, or with all
 * fields if n is 0. */
Feed *feed_fields(Tape *, const Feed *, const FeedField *, int n);

/* Copies a batch's fields, which must all be integers, to feed_bytes(batch) bytes of host memory. The tensors of the
 * feed are then in the device memory `field`, to which the caller copies these bytes. */
size_t feed_bytes(const Batch *);
void feed_write(Feed *, Tensor field[FIELDS], const Batch *, char *memory, char *host);
