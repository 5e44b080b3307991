/* The language model's loss. Megatron-LM core/tensor_parallel/cross_entropy.py. */
#pragma once

#include "tape/tape.h"

/* logits_sbv [s,b,v], a contiguous tensor that no other op may read, because its gradient overwrites it; label_bs I64
 * [b,s] in [0, vocab), vocab <= v -> loss [b,s], natural log, in the arithmetic type. */
Tensor *op_cross_entropy(Tape *, Tensor *logits_sbv, Tensor *label_bs, int64_t vocab);
/* Like op_cross_entropy, but the gradient of each loss may already be known: dloss_bs [b,s], or NULL if it is
 * unknown. If the tape records, the forward can then also compute the logits' gradient. */
Tensor *op_cross_entropy_of(Tape *, Tensor *logits_sbv, Tensor *label_bs, int64_t vocab, Tensor *dloss_bs);

/* logits_sbv and label_bs as for op_cross_entropy -> [b,s]: 1 if the label is the first of the columns with the largest
 * logit, otherwise 0. No gradient. Call it before op_cross_entropy, whose gradient may overwrite the logits at
 * once. */
Tensor *op_correct(Tape *, Tensor *logits_sbv, Tensor *label_bs, int64_t vocab);

/* Attributes of op_linear_cross_entropy. */
typedef struct LinearLoss {
    int64_t vocab; /* columns from `vocab` on are padding */
    int64_t
        positions; /* positions per chunk, > 0; the logits of a chunk, for all samples, are in memory together */
    double softcap;   /* cap of op_softcap; 0 means no cap */
    bool sequence;    /* whether x is V along the sequence over tensor-parallel ranks; otherwise it is I */
    Tensor *dloss;    /* [b,s]: the gradient of each loss; must be known if the tape records */
    Tensor **correct; /* receives op_correct of the capped logits; NULL if it is not needed */
} LinearLoss;

/* Computes op_cross_entropy of op_softcap of op_linear(x, w). Logits and their gradients exist only in chunks
 * of positions. If the tape records, the forward also computes the gradient of x and adds that of w to its
 * main gradient.
 *
 * x_sbh: a contiguous tensor that no other op may read, because its gradient overwrites it; w_vh [v,h] a parameter;
 * label_bs I64 [b,s] with the positions of all tensor-parallel ranks -> loss [b,s].
 *
 * The results are bitwise equal to those of the separate ops, with two exceptions. The gradient of w is
 * summed in a different order, and the order of summation in a GEMM may depend on the number of rows. */
Tensor *op_linear_cross_entropy(Tape *, Tensor *x_sbh, Tensor *w_vh, Tensor *label_bs, LinearLoss);

enum { LINEAR_LOSS_BYTES = 1 << 30 };
/* The number of positions per chunk, for s positions and b samples: `tokens` tokens, rounded down, but at least one
 * position. If `tokens` is 0, s is halved until the logits of a chunk, `token_bytes` per token, need at most
 * LINEAR_LOSS_BYTES. */
int64_t linear_loss_positions(int64_t s, int64_t b, int64_t tokens, size_t token_bytes);
