/* LayerNorm and RMSNorm. */
#pragma once

#include "kernels/attr.h"
#include "tape/tape.h"

/* Normalises the last dimension h of x, which is [s,b,h] or [s,b,g,r,h] and possibly strided -> contiguous,
 * same shape. gain_h [h]; bias_h [h], or NULL (always for RMSNorm). */
Tensor *op_norm(Tape *, Tensor *x, Tensor *gain_h, Tensor *bias_h, NormAttr);

/* Sets *sum to a + b, and returns its norm. There are two nodes, as for op_add and op_norm, but only one
 * kernel. a and b must be contiguous. */
Tensor *op_add_norm(Tape *, Tensor *a, Tensor *b, Tensor *gain_h, Tensor *bias_h, NormAttr, Tensor **sum);
