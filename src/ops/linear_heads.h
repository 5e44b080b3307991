/* Applies a linear layer to each head. Only generation uses this op, so it has no gradient. */
#pragma once

#include "tape/tape.h"

/* Returns [s,b,1,h,o]. x is [s,b,1,h,i], and w is [h,o,i], or [h,i,o] if `transposed` is true. x and w may be
 * strided, but the positions of x must be evenly spaced. */
Tensor *op_linear_heads(Tape *, Tensor *x, Tensor *w, bool transposed);
