/* LayerNorm and RMSNorm. */
#pragma once

#include "kernels/attr.h"
#include "tape/tape.h"

/* Normalizes the last dimension h of x. x is [s,b,h] or [s,b,g,r,h], and may be strided. The result is
 * contiguous and has the shape of x. gain_h is [h]. bias_h is [h] or NULL, and must be NULL for RMSNorm. */
Tensor *op_norm(Tape *, Tensor *x, Tensor *gain_h, Tensor *bias_h, NormAttr);

/* Sets *sum to a + b, and returns the normalized sum. The op records two nodes, like op_add and op_norm, but
 * runs only one kernel. a and b must be contiguous. */
Tensor *op_add_norm(Tape *, Tensor *a, Tensor *b, Tensor *gain_h, Tensor *bias_h, NormAttr, Tensor **sum);
