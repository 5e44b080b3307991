/* The language model's loss. Megatron-LM core/tensor_parallel/cross_entropy.py. */
#ifndef ISOTRON_OPS_LOSS_H
#define ISOTRON_OPS_LOSS_H

#include "tape/tape.h"

/* logits_sbv [s,b,v], a whole tensor that no other op reads: its memory becomes its gradient; label_bs I64
 * [b,s] in [0, vocab), vocab <= v -> loss [b,s], natural log, in the arithmetic's type. */
Tensor *op_cross_entropy(Tape *, Tensor *logits_sbv, Tensor *label_bs, int64_t vocab);

#endif
