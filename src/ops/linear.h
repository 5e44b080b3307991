/* Linear layer. Megatron-LM core/tensor_parallel/layers.py: how the weight is cut over the tensor-parallel
 * ranks makes it column-parallel (by output) or row-parallel (by input). */
#ifndef ISOTRON_OPS_LINEAR_H
#define ISOTRON_OPS_LINEAR_H

#include "ops/activation.h"
#include "tape/tape.h"

typedef enum LinearFlags {
    LINEAR_GATHER_IN =
        1, /* column-parallel: x is I, or V along the sequence; made R inside. Only the shard is kept, and
              the backward gathers it again while it computes dx, and reduces dx while it computes dw */
    LINEAR_REDUCE_OUT =
        2, /* row-parallel: the partial sums become I, or with LINEAR_SEQUENCE V; the bias comes after */
    LINEAR_SEQUENCE = 4, /* the other side of GATHER_IN or REDUCE_OUT is cut along the sequence */
} LinearFlags;

/* x_sbi [s,b,i], w_oi [o,i], bias_o [o] or NULL -> [s,b,o] = x w^T + bias, s as the flags say. The flags mean
 * nothing to a weight that is not cut, or on one tensor-parallel rank. Computed sample by sample in
 * batch-invariant mode. */
Tensor *op_linear(Tape *, Tensor *x_sbi, Tensor *w_oi, Tensor *bias_o, unsigned flags);
typedef struct Quantiser Quantiser; /* ops/quantize.h */
/* The activation of it as well, [s,b,o] or with SwiGLU [s,b,o/2], in one kernel where that saves memory
 * traffic. Not for LINEAR_REDUCE_OUT. The one reader is op_linear_on_activated. */
Activated op_linear_activated(Tape *, Tensor *x_sbi, Tensor *w_oi, Tensor *bias_o, unsigned flags,
                              const Quantiser *, Activation);
/* op_linear with products of quantised operands; NULL: of x, w and dy as they are. */
Tensor *op_linear_quantised(Tape *, Tensor *x_sbi, Tensor *w_oi, Tensor *bias_o, unsigned flags,
                            const Quantiser *);
/* The same of an activation [s,b,i]. Where nothing lies between them (no quantiser, no sum over ranks), the
 * backward gives the gradient of what the activation was taken of at once, without that of the activation. */
Tensor *op_linear_on_activated(Tape *, Activated x_sbi, Tensor *w_oi, Tensor *bias_o, unsigned flags,
                               const Quantiser *);

#endif
