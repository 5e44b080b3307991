/* Multiplies a tensor by a number. */
#pragma once

#include "tape/tape.h"

/* Returns factor * x, with the same shape and type. x may be strided, and the result is contiguous. Returns x
 * itself if the factor is 1. */
Tensor *op_scale(Tape *, Tensor *x, double factor);
