/* The language model's head: output layer, and the loss of each token. Megatron-LM
 * core/models/gpt/gpt_model.py. */
#pragma once

#include "nn/embedding.h"
#include "nn/head.h"

typedef struct LmHeadSpec {
    int64_t vocab, padded_vocab, hidden;
    const EmbeddingSpec *words; /* the output layer shares these word embeddings; NULL if they are not tied */
    double init_std;            /* for an untied output layer */
    bool chunked;               /* whether logits are computed in chunks (--cross-entropy-fusion-impl
                                   linear) */
    bool shared;                /* whether other parts of the model also read the input */
    int64_t chunk;              /* tokens per chunk; if 0, it is chosen by the chunk's memory */
    double scaling;             /* divisor of the logits */
    bool bias;                  /* whether the output layer has a bias; not supported with `chunked` */
    bool counts;                /* whether training counts the labels that have the largest logits */
    bool detached;              /* whether the output layer gets no gradient */
    double softcap;             /* softcap of the divided logits (ops/softcap.h), or 0 if there is none */
} LmHeadSpec;

typedef struct LmHead {
    const LmHeadSpec *spec;
    Param *output, *bias; /* bias NULL: none */
} LmHead;

/* The module is an LmHead, and the spec is an LmHeadSpec. The loss has one value per token, [b, s]. */
extern const HeadOps lm_head;
