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

typedef struct Quantiser Quantiser; /* ops/fp8.h */

/* A linear layer apart from its input. The flags mean nothing to a weight that is not sharded, or on one
 * tensor-parallel rank. */
typedef struct LinearLayer {
    Tensor *w_oi, *bias_o;      /* [o,i], [o]; bias NULL: none */
    unsigned flags;             /* LinearFlags */
    const Quantiser *quantiser; /* GEMMs of quantised operands; NULL: of x, w and dy as they are */
} LinearLayer;

/* x_sbi [s,b,i] -> [s,b,o] = x w^T + bias, s as the flags say. Computed sample by sample in batch-invariant
 * mode. */
Tensor *op_linear(Tape *, Tensor *x_sbi, const LinearLayer *);
/* The activation of it as well, [s,b,o] or with SwiGLU [s,b,o/2], in one kernel where that saves memory
 * traffic. Not for LINEAR_REDUCE_OUT. The one reader is op_linear_on_activated. */
Activated op_linear_activated(Tape *, Tensor *x_sbi, const LinearLayer *, Activation);
/* op_linear of an activation [s,b,i]. Without a quantiser and a sum over ranks between them, the backward
 * goes straight to the gradient before the activation. The activation's own gradient is never stored. */
Tensor *op_linear_on_activated(Tape *, Activated x_sbi, const LinearLayer *);

#endif
