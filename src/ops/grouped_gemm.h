/* The GEMMs of all experts' linear layers on one rank, with plain operands or in FP8 (ops/fp8.h), like
 * ops/linear_gemm.h. y is overwritten; dx and dw are overwritten or accumulated. */
#pragma once

#include "kernels/attr.h"
#include "ops/fp8.h"
#include "tape/tape.h"

typedef struct GroupedGemm {
    LinearAttr linear;          /* must be first, because the kernels read it */
    const Quantiser *quantiser; /* NULL if operands are not quantized */
    QuantRows rows; /* the caller sets the offset, and the forward pass sets the remaining members */
    Tensor *x_state, *w_state; /* the states that quantized the operands */
    QuantOperand x_rows;       /* FP8 values of x's transpose, if they are kept for the backward pass */
} GroupedGemm;

/* call.in contains x, w, the offset, the bias and its scale. call.out contains y. */
void grouped_gemm_forward(Tape *, GroupedGemm *, Call);

/* dy and its FP8 values. The caller must free the values with quantize_drop. */
typedef struct GroupedGradient {
    Tensor *dy;
    QuantValues values;
} GroupedGradient;
/* `type` is the SPMD type of y. `dx` and `dw` specify whether the gradients are needed. */
GroupedGradient grouped_gemm_gradient(Tape *, const GroupedGemm *, Tensor *dy, SpmdType type, bool dx,
                                      bool dw);
void grouped_gemm_dx(Tape *, const GroupedGemm *, const GroupedGradient *, Tensor *w, Tensor *dx);
void grouped_gemm_dw(Tape *, const GroupedGemm *, const GroupedGradient *, Tensor *x, Tensor *dw);
