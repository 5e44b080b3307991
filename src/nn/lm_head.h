/* The language model's head: output layer, and the loss of each token. Megatron-LM
 * core/models/gpt/gpt_model.py. */
#ifndef ISOTRON_NN_LM_HEAD_H
#define ISOTRON_NN_LM_HEAD_H

#include "nn/feed.h"
#include "nn/head.h"
#include "tape/tape.h"

typedef struct LmHeadSpec {
    int64_t vocab, padded_vocab, hidden;
    double init_std; /* of an output layer that is not tied */
    bool chunked;    /* logits exist in chunks only (--cross-entropy-fusion-impl linear) */
    int64_t chunk;   /* positions of a chunk; 0: chosen by size */
    double scaling;  /* divisor of the logits */
    bool bias;       /* of the output layer; not with chunks */
    double softcap;  /* bound of the divided logits (ops/softcap.h); 0: none */
} LmHeadSpec;

typedef struct LmHead {
    const LmHeadSpec *spec;
    Param *output, *bias; /* bias NULL: none */
} LmHead;

extern const HeadOps lm_head; /* the module is an LmHead, the spec an LmHeadSpec */
/* h [s, b, h], normed -> with labels in the feed the loss of each token [b, s] in nats, else logits [s, b,
 * padded vocabulary], which are V along the vocabulary over tensor-parallel ranks. */
Tensor *lm_head_forward(Tape *, const LmHead *, const Feed *, Tensor *h_sbh);

#endif
