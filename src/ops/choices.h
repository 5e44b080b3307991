/* Groups samples by question. */
#pragma once

#include "tape/tape.h"

/* Copies contiguous x [1,b,1] to [1,b/n,n]. x contains one number per choice, and the n choices for a question
 * are adjacent. */
Tensor *op_choices(Tape *, Tensor *x_1b1, int64_t n);
