/* Multiplication by a number. */
#pragma once

#include "tape/tape.h"

/* factor * x, same shape and type, possibly strided -> contiguous; x itself if the factor is 1. */
Tensor *op_scale(Tape *, Tensor *x, double factor);
