/* Selects one position of a sequence. */
#pragma once

#include "tape/tape.h"

/* Returns a copy of row `row` of contiguous x [s,b,h], as [1,b,h]. The gradient of other rows is zero. */
Tensor *op_take_row(Tape *, Tensor *x_sbh, int64_t row);
