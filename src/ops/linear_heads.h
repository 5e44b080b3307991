/* Applies a linear layer to each head. It is used in generation, so the op has no gradient. */
#pragma once

#include "tape/tape.h"

/* x [s,b,1,h,i] and w [h,o,i], or [h,i,o] if `transposed`; both may be strided, but the positions of x must be evenly
 * spaced -> [s,b,1,h,o] */
Tensor *op_linear_heads(Tape *, Tensor *x, Tensor *w, bool transposed);
