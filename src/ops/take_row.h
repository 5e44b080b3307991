/* Selects positions from a sequence. */
#pragma once

#include "tape/tape.h"

/* Returns a copy of row `row` of contiguous x [s,b,h], as [1,b,h]. The gradient of all other rows is zero. */
Tensor *op_take_row(Tape *, Tensor *x_sbh, int64_t row);
/* Returns [n,1,h]: copies of rows of contiguous x [s,1,h], in the order given by `rows`, I64 [n]. Only generation uses
 * the op, so it has no gradient. */
Tensor *op_take_rows(Tape *, Tensor *x_s1h, Tensor *rows);
