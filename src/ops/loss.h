/* The language model's loss. Megatron-LM core/tensor_parallel/cross_entropy.py. */
#ifndef ISOTRON_OPS_LOSS_H
#define ISOTRON_OPS_LOSS_H

#include "tape/tape.h"

/* logits_sbv [s,b,v], a whole tensor that no other op reads: its memory becomes its gradient; label_bs I64
 * [b,s] in [0, vocab), vocab <= v -> loss [b,s], natural log, in the arithmetic's type. */
Tensor *op_cross_entropy(Tape *, Tensor *logits_sbv, Tensor *label_bs, int64_t vocab);
/* The same when the gradient that each loss will get, dloss_bs [b,s], is known: the logits become their
 * gradient on the way, unless nothing is recorded. NULL: it is not known. */
Tensor *op_cross_entropy_of(Tape *, Tensor *logits_sbv, Tensor *label_bs, int64_t vocab, Tensor *dloss_bs);

/* Attributes of op_linear_cross_entropy. */
typedef struct LinearLoss {
    int64_t vocab;     /* columns from there on are padding */
    int64_t positions; /* of a chunk, > 0: their logits of all samples are in memory together */
    double softcap;    /* of the logits, as op_softcap; 0: none */
    bool sequence;     /* over tensor-parallel ranks x is V along the sequence, else I */
    Tensor *dloss;     /* [b,s]: the gradient that each loss will get; known if the tape records */
} LinearLoss;

/* op_cross_entropy of op_softcap of op_linear(x, w): logits exist in chunks of positions, and so do their
 * gradients. If the tape records, the gradients of x and w are computed on the way, w's is in its main
 * gradient when the op returns. x_sbh: a whole tensor that no other op reads, its memory becomes its
 * gradient; w_vh [v,h] a parameter; label_bs I64 [b,s], s that of all tensor-parallel ranks -> loss [b,s].
 * The bits are those of the two ops but for the order in which w's gradient is summed, and for GEMMs whose
 * order of summation depends on the number of rows. */
Tensor *op_linear_cross_entropy(Tape *, Tensor *x_sbh, Tensor *w_vh, Tensor *label_bs, LinearLoss);

enum { LINEAR_LOSS_BYTES = 1 << 30 };
/* The positions of a chunk of s, with b samples: those of `tokens` tokens, rounded down but at least one; 0:
 * s cut in half until the logits of a chunk, `token_bytes` each, take no more than LINEAR_LOSS_BYTES. */
int64_t linear_loss_positions(int64_t s, int64_t b, int64_t tokens, size_t token_bytes);

#endif
