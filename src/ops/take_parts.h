/* Selects rows of a parameter for a context-parallel rank. */
#pragma once

#include "tape/tape.h"

typedef struct RowRange {
    int64_t first, n;
} RowRange;
enum { TAKEN_PARTS = 3 };

/* Concatenates copies of `parts` ranges of rows of w [rows,...], which is R over CP. The result is V over CP, and has
 * the type of masters and main gradients. The gradient of the other rows is 0. */
Tensor *op_take_parts(Tape *, Tensor *w, const RowRange *range, int parts);
