/* Linear layer. Megatron-LM core/tensor_parallel/layers.py. */
#ifndef ISOTRON_OPS_LINEAR_H
#define ISOTRON_OPS_LINEAR_H

#include "tape/tape.h"

/* x_sbi [s,b,i], w_oi [o,i], bias_o [o] or NULL -> [s,b,o] = x w^T + bias. Computed sample by sample in
 * batch-invariant mode. */
Tensor *op_linear(Tape *, Tensor *x_sbi, Tensor *w_oi, Tensor *bias_o);

#endif
