/* The language model's head: output layer without bias, and the loss of each token. Megatron-LM
 * core/models/gpt/gpt_model.py. */
#ifndef ISOTRON_NN_LM_HEAD_H
#define ISOTRON_NN_LM_HEAD_H

#include "nn/embedding.h"

typedef struct LmHeadSpec {
    int64_t vocab, padded_vocab, hidden;
    bool tied;       /* the output layer is the word table */
    double init_std; /* of an output layer of its own */
    bool chunked;    /* logits exist in chunks only (--cross-entropy-fusion-impl linear) */
    int64_t chunk;   /* positions of a chunk; 0: chosen by size */
    double scaling;  /* the logits are divided by it */
    double softcap;  /* then bounded by it (ops/softcap.h); 0: not */
} LmHeadSpec;

typedef struct LmHead {
    const LmHeadSpec *spec;
    Param *output;
} LmHead;

/* words: the table that a tied head shares, or its copy. The spec must outlive the registry. */
void lm_head_init(LmHead *, Registry *, const LmHeadSpec *, Param *words);
/* h [s, b, h], normed -> with labels in the feed the loss of each token [b, s] in nats, else logits
 * [s, b, padded vocabulary], over tensor-parallel ranks V along the vocabulary. */
Tensor *lm_head_forward(Tape *, const LmHead *, const Feed *, Tensor *h_sbh);
/* Positions of a chunk of logits of b samples of s positions; 0: all logits at once. */
int64_t lm_head_positions(const LmHeadSpec *, const Layout *, int64_t s, int64_t b, DType storage);
double lm_head_flops(const LmHeadSpec *, double s); /* as BranchOps.flops */

#endif
