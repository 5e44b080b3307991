/* LayerNorm or RMSNorm with its parameters, like Megatron-LM core/transformer/torch_norm.py. */
#pragma once

#include "kernels/attr.h"
#include "param/param.h"
#include "tape/tape.h"

typedef struct Norm {
    Param *gain, *bias; /* [width]; a NULL gain means 1, and a NULL bias means no bias */
    NormAttr attr;
} Norm;

/* Registers a norm. Gains are initialized to 1, or to 0 if the norm multiplies by 1 + gain. */
Norm norm_new(Registry *, const char *name, int64_t width, NormAttr);
Tensor *norm_forward(Tape *, const Norm *, Tensor *x);
/* Normalizes *x + branch, and sets *x to this sum. */
Tensor *norm_forward_sum(Tape *, const Norm *, Tensor **x, Tensor *branch);
