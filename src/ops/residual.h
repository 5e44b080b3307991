/* Sum of two tensors: the residual stream. */
#ifndef ISOTRON_OPS_RESIDUAL_H
#define ISOTRON_OPS_RESIDUAL_H

#include "tape/tape.h"

/* a + b, same shape and type, possibly strided -> contiguous. */
Tensor *op_add(Tape *, Tensor *a, Tensor *b);

#endif
