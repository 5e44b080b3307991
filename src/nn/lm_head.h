/* The language model's head: the output layer, and the loss for each token. The head corresponds to Megatron-LM
 * core/models/gpt/gpt_model.py. */
#pragma once

#include "nn/embedding.h"
#include "nn/head.h"
#include "ops/fp8.h"

typedef struct LmHeadSpec {
    int64_t vocab, padded_vocab, hidden;
    const EmbeddingSpec *words; /* the output layer shares these word embeddings; NULL if not tied */
    double init_std;            /* only for an untied output layer */
    bool chunked;               /* whether to compute logits in chunks (--cross-entropy-fusion-impl linear) */
    bool shared;                /* whether other parts of the model also read the head's input */
    int64_t chunk;              /* number of tokens per chunk; 0 derives it from a chunk's memory use */
    double scaling;             /* divisor of the logits */
    bool bias;                  /* whether the output layer has a bias; not supported with `chunked` */
    bool counts;                /* whether training counts the labels that have the largest logits */
    bool detached;              /* true if the output layer gets no gradient */
    double softcap;             /* softcap for the divided logits (ops/softcap.h); 0 if there is none */
    QuantSpec quant;
} LmHeadSpec;

typedef struct LmHead {
    const LmHeadSpec *spec;
    Param *output, *bias; /* bias is NULL if there is none */
    const Quantiser *quantiser;
} LmHead;

/* The module is an LmHead, and the spec is an LmHeadSpec. The loss has one value per token, [b, s]. */
extern const HeadOps lm_head;
