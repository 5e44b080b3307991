/* The language model's head: output layer, and the loss of each token. Megatron-LM
 * core/models/gpt/gpt_model.py. */
#pragma once

#include "nn/embedding.h"
#include "nn/head.h"

typedef struct LmHeadSpec {
    int64_t vocab, padded_vocab, hidden;
    const EmbeddingSpec *words; /* its table is the output layer; NULL: not tied */
    double init_std;            /* of an output layer that is not tied */
    bool chunked;               /* logits exist in chunks only (--cross-entropy-fusion-impl linear) */
    int64_t chunk;              /* positions of a chunk; 0: chosen by size */
    double scaling;             /* divisor of the logits */
    bool bias;                  /* of the output layer; not with chunks */
    double softcap;             /* bound of the divided logits (ops/softcap.h); 0: none */
} LmHeadSpec;

typedef struct LmHead {
    const LmHeadSpec *spec;
    Param *output, *bias; /* bias NULL: none */
} LmHead;

/* The module is an LmHead, the spec an LmHeadSpec. Its loss is that of each token, [b, s]. */
extern const HeadOps lm_head;
