/* Sums of two tensors, as in the residual stream, and copies. */
#pragma once

#include "tape/tape.h"

/* a + b, same shape and type, possibly strided -> contiguous. */
Tensor *op_add(Tape *, Tensor *a, Tensor *b);

/* A contiguous copy of x. */
Tensor *op_contiguous(Tape *, Tensor *x);

/* For an op whose kernel computes a + b together with other results: residual_sum creates the output with its SPMD
 * type, and residual_record records the sum. */
Tensor *residual_sum(Tape *, Tensor *a, Tensor *b);
void residual_record(Tape *, Tensor *a, Tensor *b, Tensor *sum);
