/* All experts' linear layers, like Megatron-LM core/transformer/moe/experts.py. */
#pragma once

#include "ops/fp8.h"

typedef struct GroupedLayer {
    Tensor *w_eoi;
    /* bias_eo [e*o] contains the biases of all experts, or is NULL if there are none. scale_r11 [r,1,1] contains a
     * factor for each row's bias; NULL means that all factors are 1. */
    Tensor *bias_eo, *scale_r11;
    const Quantiser *quantiser; /* NULL if operands are not quantized */
} GroupedLayer;

/* x_r1i is [r,1,i], and its rows are grouped by expert: rows offset[e] to offset[e+1] belong to expert e.
 * offset is I64 [e+1], and w_eoi is [e*o,i]. Returns [r,1,o], with zeros after the last expert's rows. In
 * batch-invariant mode, GEMMs sum in a fixed order. If the weight is split by input, only the first of the
 * ranks that share the weight adds the bias. On the remaining ranks, the bias has no gradient. */
Tensor *op_grouped_linear(Tape *, Tensor *x_r1i, GroupedLayer, Tensor *offset);
