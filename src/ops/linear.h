/* A linear layer. As in Megatron-LM core/tensor_parallel/layers.py, a weight that is sharded over the tensor-parallel
 * ranks makes the layer column-parallel (sharded by output) or row-parallel (sharded by input). */
#pragma once

#include "ops/activation.h"
#include "tape/tape.h"

typedef enum LinearFlags {
    /* Column-parallel: the op converts x, which is I or V along the sequence, to R. Unless
     * RunContext.keeps_gathered is set, only the shard of x is kept for the backward pass. The backward pass
     * gathers x again while it computes dx, and reduces dx while it computes dw. */
    LINEAR_GATHER_IN = 1,
    /* Row-parallel: the partial sums become I, or V with LINEAR_SEQUENCE, and the bias is then added. */
    LINEAR_REDUCE_OUT = 2,
    /* the input (with GATHER_IN) or the output (with REDUCE_OUT) is sharded along the sequence */
    LINEAR_SEQUENCE = 4,
} LinearFlags;

typedef struct Quantiser Quantiser; /* defined in ops/fp8.h */

/* Describes a linear layer, apart from its input. The flags have no effect if the weight is not sharded, or if
 * there is only one tensor-parallel rank. */
typedef struct LinearLayer {
    Tensor *w_oi, *bias_o;      /* [o,i], and [o] or NULL if there is no bias */
    unsigned flags;             /* a mask of LinearFlags */
    const Quantiser *quantiser; /* quantizes the GEMMs' operands; NULL means no quantization */
    const Tensor *inverse_o;    /* the factors of a quantized weight (ops/quantized.h), otherwise NULL */
} LinearLayer;

/* Returns [s,b,o] = x w^T + bias for x_sbi [s,b,i]. The flags determine whether the result has the same size s
 * as the input. In batch-invariant mode, each sample is computed separately. */
Tensor *op_linear(Tape *, Tensor *x_sbi, const LinearLayer *);
/* Like op_linear, but also computes the activation, which is [s,b,o] or, if gated, [s,b,o/2]. One kernel
 * computes both the layer and the activation if the fusion saves memory traffic. LINEAR_REDUCE_OUT is not
 * supported. Only op_linear_on_activated may read the result. If `halfway` is true, the op calls
 * tape_pause_halfway before a separate activation, so that both halves of an MLP take about the same time. */
Activated op_linear_activated(Tape *, Tensor *x_sbi, const LinearLayer *, ActivationAttr, bool halfway);
/* Does the same as op_linear for an activation [s,b,i]. Unless the layer has a quantizer or dx is a sum over ranks, the
 * backward pass directly computes the gradient of the activation's input, and never stores the gradient of the
 * activation. */
Tensor *op_linear_on_activated(Tape *, Activated x_sbi, const LinearLayer *);
