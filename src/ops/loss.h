/* The language model's loss, like Megatron-LM core/tensor_parallel/cross_entropy.py. */
#pragma once

#include "ops/linear.h"
#include "tape/tape.h"

/* Returns the losses [b,s] in nats, in the arithmetic type. logits_sbv [s,b,v] is contiguous, and no other op may read
 * it, because its gradient overwrites it. label_bs is I64 [b,s] in [0, vocab), where vocab <= v. */
Tensor *op_cross_entropy(Tape *, Tensor *logits_sbv, Tensor *label_bs, int64_t vocab);
/* Does the same as op_cross_entropy for losses whose gradients dloss_bs [b,s] may already be known (NULL if unknown).
 * If they are known and the tape records, the forward pass can also compute the logits' gradient. */
Tensor *op_cross_entropy_of(Tape *, Tensor *logits_sbv, Tensor *label_bs, int64_t vocab, Tensor *dloss_bs);

/* Returns [b,s]: 1 if the label is the first column with the largest logit, otherwise 0. Takes the same operands as
 * op_cross_entropy. The op has no gradient. Call op_correct before op_cross_entropy, which may overwrite the logits
 * immediately. */
Tensor *op_correct(Tape *, Tensor *logits_sbv, Tensor *label_bs, int64_t vocab);

/* Attributes for op_linear_cross_entropy. */
typedef struct LinearLoss {
    int64_t vocab; /* columns with an index >= vocab are padding */
    /* positions per chunk, > 0; only one chunk's logits, for all samples, are in memory at a time */
    int64_t positions;
    double softcap; /* cap for op_softcap; 0 means no cap */
    bool sequence;  /* whether x is V along the sequence over tensor-parallel ranks, instead of I */
    const Quantiser *quantiser; /* see LinearLayer */
    Tensor *dloss;              /* [b,s]: the gradient of each loss; required if the tape records */
    /* receives op_correct's result for the capped logits; NULL if the result is not needed */
    Tensor **correct;
} LinearLoss;

/* Computes op_cross_entropy(op_softcap(op_linear(x, w))). Logits and their gradients exist only in chunks of positions.
 * If the tape records, the forward pass also computes the gradient of x, and adds the gradient of w to its main
 * gradient.
 *
 * x_sbh is contiguous, and no other op may read it, because its gradient overwrites it. w_vh [v,h] is a parameter.
 * label_bs is I64 [b,s] with the positions of all tensor-parallel ranks. Returns the losses [b,s].
 *
 * Results are bitwise equal to those of the separate ops, with two exceptions. The gradient of w is summed in a
 * different order, and the order of summation in a GEMM can depend on the number of rows. */
Tensor *op_linear_cross_entropy(Tape *, Tensor *x_sbh, Tensor *w_vh, Tensor *label_bs, LinearLoss);

enum { LINEAR_LOSS_BYTES = 1 << 30 };
/* Returns the number of positions per chunk for s positions and b samples. A chunk has at most `tokens` tokens,
 * but at least one position. If `tokens` is 0, s is halved until a chunk's logits, with `token_bytes` bytes per
 * token, take at most LINEAR_LOSS_BYTES. */
int64_t linear_loss_positions(int64_t s, int64_t b, int64_t tokens, size_t token_bytes);
