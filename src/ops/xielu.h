/* xIELU (Huang and Schlag, arXiv 2411.13010), an activation with two trained numbers. */
#pragma once

#include "tape/tape.h"

/* The tensors of an xIELU, each of shape [1]. beta and eps are not trained. */
typedef struct XieluNumbers {
    Tensor *alpha_p, *alpha_n, *beta, *eps;
} XieluNumbers;

/* Applies xIELU to each element of contiguous x [s,b,f]. The result has the shape of x. kernels/cpu/xielu.c
 * contains the formulas. */
Tensor *op_xielu(Tape *, Tensor *x_sbf, XieluNumbers);
