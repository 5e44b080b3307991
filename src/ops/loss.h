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

#endif
