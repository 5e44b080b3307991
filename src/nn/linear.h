/* A linear layer y = x W^T + b. As in Megatron-LM core/tensor_parallel/layers.py, the dimension along which
 * the weight is split determines whether the layer is column-parallel or row-parallel. */
#pragma once

#include "ops/activation.h"
#include "ops/fp8.h"
#include "param/param.h"
#include "tape/tape.h"

typedef struct Linear {
    Param *weight; /* [out, in] */
    Param *bias;   /* [out]; NULL if there is no bias */
    /* Flags for op_linear: a column-parallel layer gathers its input, and a row-parallel layer reduces its output. */
    unsigned flags;
    const Quantiser *quantiser; /* NULL if operands are not quantized */
} Linear;

typedef struct LinearSpec {
    const char *name; /* ".weight" and ".bias" are appended */
    int64_t in, out;
    bool bias;
    /* 0 for a column-parallel layer, 1 for a row-parallel layer, SPLIT_NONE if every rank has the entire layer */
    int tp_split;
    bool invariant; /* only for a weight that is not split; see param.h */
    double init_std;
    unsigned weight_flags; /* ParamFlags */
    bool fixed_bias;       /* whether the bias is not trained (PARAM_BUFFER) */
    QuantSpec quant;
    bool split_parts; /* see param.h */
    int64_t groups;   /* number of groups into which the output rows are divided; see param.h */
    int64_t heads;    /* see param.h */
    int n_parts;
    ParamPart parts[PARAM_PARTS];
} LinearSpec;

Linear linear_new(Registry *, LinearSpec);
Tensor *linear_forward(Tape *, const Linear *, Tensor *x_sbi);
/* Like linear_forward, but also computes the activation. Only linear_on_activated may read the result. For `halfway`,
 * see op_linear_activated. */
Activated linear_activated(Tape *, const Linear *, Tensor *x_sbi, ActivationAttr, bool halfway);
Tensor *linear_on_activated(Tape *, const Linear *, Activated x_sbi);
