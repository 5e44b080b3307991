/* LayerNorm or RMSNorm with its parameters, like Megatron-LM core/transformer/torch_norm.py. */
#pragma once

#include "kernels/attr.h"
#include "param/param.h"
#include "tape/tape.h"

typedef struct Norm {
    Param *gain, *bias; /* [width]; if the gain is NULL, it is 1; if the bias is NULL, there is no bias */
    NormAttr attr;
} Norm;

/* Registers a norm. Gains are initialized to 1, or to 0 if the norm multiplies by 1 + gain. */
Norm norm_new(Registry *, const char *name, int64_t width, NormAttr);
Tensor *norm_forward(Tape *, const Norm *, Tensor *x);
/* Sets *x to *x + branch, and returns the normalized sum. */
Tensor *norm_forward_sum(Tape *, const Norm *, Tensor **x, Tensor *branch);
