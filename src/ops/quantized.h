/* The GEMM for a linear layer whose weight is stored in one byte per element (param/quantized.h).
 *
 *   I8   rounds only the weight: y = (x q^T) * inverse + bias.
 *   FP8  also rounds each token's row of x to FP8, with a separate scale, because tensor cores multiply FP8 only
 *        by FP8.
 *
 * A row of y depends only on its row of x. Only generation uses the op, so it has no gradient. */
#pragma once

#include "kernels/attr.h"
#include "tape/tape.h"

/* The call's operands are those of linear_gemm_forward: x, w, bias, y and act. inverse_o [o] contains the
 * weight's factors. */
void quantized_forward(Tape *, const LinearAttr *, const Tensor *inverse_o, Call);
