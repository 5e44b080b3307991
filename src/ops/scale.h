/* Multiplication by a number. */
#ifndef ISOTRON_OPS_SCALE_H
#define ISOTRON_OPS_SCALE_H

#include "tape/tape.h"

/* factor * x, same shape and type, possibly strided -> contiguous; x itself if the factor is 1. */
Tensor *op_scale(Tape *, Tensor *x, double factor);

#endif
