/* One position of a sequence. */
#pragma once

#include "tape/tape.h"

/* Row `row` of a contiguous x [s,b,h] as [1,b,h], a copy. Backward: zeros elsewhere. */
Tensor *op_take_row(Tape *, Tensor *x_sbh, int64_t row);
