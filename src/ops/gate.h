/* Gates of Gated DeltaNet and of attention. */
#pragma once

#include "kernels/attr.h"
#include "tape/tape.h"

/* Returns x act(z) for each element. x is contiguous. z has the shape of x, and may be a view whose rows are
 * contiguous. */
Tensor *op_gate(Tape *, Tensor *x, Tensor *z, GateAttr);
