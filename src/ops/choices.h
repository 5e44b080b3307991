/* Numbers of the choices of questions. */
#ifndef ISOTRON_OPS_CHOICES_H
#define ISOTRON_OPS_CHOICES_H

#include "tape/tape.h"

/* A contiguous x [1,b,1] with one number for each choice, those of a question adjacent -> [1,b/n,n], a copy. */
Tensor *op_choices(Tape *, Tensor *x_1b1, int64_t n);

#endif
