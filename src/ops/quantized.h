/* The GEMM for a linear layer whose weight is stored in one byte per element (param/quantized.h):
 *
 *   I8   y = (x q^T) * inverse + bias: only the weight is rounded
 *   FP8 each token's row of x is rounded to FP8 as well, with its own scale, because tensor cores multiply FP8 only
 *   by FP8
 *
 * A row of y depends only on its row of x. Only generation uses the op, so it has no gradient. */
#pragma once

#include "kernels/attr.h"
#include "tape/tape.h"

/* call: x, w and bias; y and act, as in linear_gemm_forward. inverse [o]: the weight's factors. */
void quantized_forward(Tape *, const LinearAttr *, const Tensor *inverse_o, Call);
