/* One position of a sequence. */
#ifndef ISOTRON_OPS_TAKE_ROW_H
#define ISOTRON_OPS_TAKE_ROW_H

#include "tape/tape.h"

/* Row `row` of a contiguous x [s,b,h] as [1,b,h], a copy. Backward: zeros elsewhere. */
Tensor *op_take_row(Tape *, Tensor *x_sbh, int64_t row);

#endif
