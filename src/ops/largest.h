/* The likeliest token of each position. */
#pragma once

#include "tape/tape.h"

/* Returns I64 [s,b]: for each row of x [s,b,v], the index of the first of the largest among its first n elements; -1 if
 * any of these is not finite. It has no gradient. */
Tensor *op_largest(Tape *, Tensor *x_sbv, int64_t n);
