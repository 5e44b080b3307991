/* Rotary position embedding. Megatron-LM core/models/common/embeddings/rope_utils.py. */
#ifndef ISOTRON_OPS_ROPE_H
#define ISOTRON_OPS_ROPE_H

#include "kernels/attr.h"
#include "tape/tape.h"

/* x [s,b,g,r,d], may be strided; cos and sin [positions,dim/2] in the arithmetic's type; position I64 [b,s]
 * -> contiguous, same shape. */
Tensor *op_rope(Tape *, Tensor *x_sbgrd, Tensor *cos, Tensor *sin, Tensor *position_bs, RopeAttr);

#endif
