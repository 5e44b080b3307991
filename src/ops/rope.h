/* Rotary position embedding, like Megatron-LM core/models/common/embeddings/rope_utils.py. */
#pragma once

#include "kernels/attr.h"
#include "tape/tape.h"

/* Rotates x [s,b,g,r,d], which may be strided. The result is contiguous and has the shape of x. cos and sin
 * are [positions,dim/2] in the arithmetic type, and position is I64 [b,s]. */
Tensor *op_rope(Tape *, Tensor *x_sbgrd, Tensor *cos, Tensor *sin, Tensor *position_bs, RopeAttr);
/* Rotates the first n of the `all` heads in each group of x [s,b,groups*all*d] in place. No other op may read
 * x in the forward or the backward pass. The backward pass also rotates the gradient in place. */
Tensor *op_rope_in_place(Tape *, Tensor *x_sbw, int64_t groups, int64_t all, int64_t n, Tensor *cos,
                         Tensor *sin, Tensor *position_bs, RopeAttr);
