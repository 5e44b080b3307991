/* Numbers of the choices of questions. */
#pragma once

#include "tape/tape.h"

/* A contiguous x [1,b,1] with one number per choice; the n choices of a question are adjacent -> [1,b/n,n], a copy. */
Tensor *op_choices(Tape *, Tensor *x_1b1, int64_t n);
