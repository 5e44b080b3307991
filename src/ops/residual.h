/* Adds two tensors, as in the residual stream, and copies tensors. */
#pragma once

#include "tape/tape.h"

/* Returns a + b, which is contiguous. a and b have the same shape and type, and may be strided. */
Tensor *op_add(Tape *, Tensor *a, Tensor *b);

/* Returns a contiguous copy of x. */
Tensor *op_contiguous(Tape *, Tensor *x);

/* Ops whose kernels compute a + b together with other results use residual_sum and residual_record.
 * residual_sum creates the output with its SPMD type. residual_record records the sum. */
Tensor *residual_sum(Tape *, Tensor *a, Tensor *b);
void residual_record(Tape *, Tensor *a, Tensor *b, Tensor *sum);
