/* LayerNorm and RMSNorm. */
#ifndef ISOTRON_OPS_NORM_H
#define ISOTRON_OPS_NORM_H

#include "kernels/attr.h"
#include "tape/tape.h"

/* Over the last dimension h of x, [s,b,h] or [s,b,g,r,h] and possibly strided -> contiguous, same shape.
 * gain_h [h]; bias_h [h], or NULL (always for RMSNorm). */
Tensor *op_norm(Tape *, Tensor *x, Tensor *gain_h, Tensor *bias_h, NormAttr);

#endif
