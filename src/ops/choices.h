/* Numbers of the choices of questions. */
#pragma once

#include "tape/tape.h"

/* A contiguous x [1,b,1] with one number for each choice, those of a question adjacent -> [1,b/n,n], a copy. */
Tensor *op_choices(Tape *, Tensor *x_1b1, int64_t n);
