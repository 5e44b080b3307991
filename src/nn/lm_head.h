/* The language model's head: the output layer, and the loss of each token. The head corresponds to Megatron-LM
 * core/models/gpt/gpt_model.py. */
#pragma once

#include "nn/embedding.h"
#include "nn/head.h"

typedef struct LmHeadSpec {
    int64_t vocab, padded_vocab, hidden;
    const EmbeddingSpec *words; /* the output layer shares these word embeddings; NULL if they are not tied */
    double init_std;            /* only for an untied output layer */
    bool chunked;               /* logits are computed in chunks (--cross-entropy-fusion-impl linear) */
    bool shared;                /* other parts of the model also read the input */
    int64_t chunk;              /* number of tokens per chunk; if 0, the memory of a chunk determines it */
    double scaling;             /* divisor of the logits */
    bool bias;                  /* the output layer has a bias; not supported with `chunked` */
    bool counts;                /* training counts the labels that have the largest logits */
    bool detached;              /* the output layer has no gradient */
    double softcap;             /* softcap of the divided logits (ops/softcap.h); 0 if there is none */
} LmHeadSpec;

typedef struct LmHead {
    const LmHeadSpec *spec;
    Param *output, *bias; /* bias is NULL if there is none */
} LmHead;

/* The module is an LmHead, and the spec is an LmHeadSpec. The loss has one value per token, [b, s]. */
extern const HeadOps lm_head;
