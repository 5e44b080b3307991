/* LayerNorm or RMSNorm with its parameters. Megatron-LM core/transformer/torch_norm.py. */
#pragma once

#include "kernels/attr.h"
#include "param/param.h"
#include "tape/tape.h"

typedef struct Norm {
    Param *gain, *bias; /* [width]; NULL means a gain of ones, or no bias */
    NormAttr attr;
} Norm;

/* Gains are initialized to 1, or to 0 if they are applied as 1 + w. */
Norm norm_new(Registry *, const char *name, int64_t width, NormAttr);
Tensor *norm_forward(Tape *, const Norm *, Tensor *x);
/* Returns the norm of *x + branch, and sets *x to that sum. */
Tensor *norm_forward_sum(Tape *, const Norm *, Tensor **x, Tensor *branch);
