/* The GEMMs of a linear layer on one rank, with plain operands or in FP8 (ops/fp8.h):
 *
 *   forward   y = x w^T + bias,
 *   backward  dx = dy w, dw = dy^T x, dbias = sum of dy.
 *
 * op_linear (ops/linear.c) adds the communication. y is overwritten; dx, dw and dbias are overwritten or
 * accumulated. */
#pragma once

#include "kernels/attr.h"
#include "ops/fp8.h"
#include "tape/tape.h"

typedef struct LinearGemm {
    LinearAttr linear;          /* must be first, because the kernels read it */
    const Quantiser *quantiser; /* NULL if operands are not quantized */
    const Tensor *inverse;      /* see LinearLayer.inverse_o */
    /* whether the backward pass gathers x again, so that no FP8 values of x are kept */
    bool gathers_x;
    /* if not NULL, x is the activation of pre, and dx is the gradient of pre; otherwise, dx is the gradient of x */
    Tensor *pre;
    /* The forward pass sets these members. */
    bool is_fp8;               /* whether the device has FP8 GEMMs for this layer */
    Tensor *x_state, *w_state; /* the states that quantized the operands */
    QuantOperand x_rows;       /* FP8 values of x's transpose, if they are kept for the backward pass */
    bool shares_w;             /* whether linear_gemm_share_w has set is_fp8, w_state and w */
    QuantValues w;
} LinearGemm;

/* call.in contains x, w and bias. call.out contains y and act. act is NULL if there is no activation. */
void linear_gemm_forward(Tape *, LinearGemm *, Call);

/* Quantizes w once for several GEMMs, each with `rows` rows and a copy of the LinearGemm. `dx` states whether a
 * backward pass follows. The caller must free the result with quantize_drop after the last GEMM. */
QuantValues linear_gemm_share_w(Tape *, LinearGemm *, Tensor *w, int64_t rows, bool dx);

/* dy and, for FP8 GEMMs, the FP8 values of dy for dx and dw. One pass over dy computes both sets of values.
 * The caller must free the values with quantize_drop. `type` is the full gradient's SPMD type. */
typedef struct GemmGradient {
    Tensor *dy, *state;
    QuantValues values;
} GemmGradient;
GemmGradient linear_gemm_gradient(Tape *, const LinearGemm *, Tensor *dy, SpmdType type, bool dx, bool dw);
void linear_gemm_dx(Tape *, const LinearGemm *, const GemmGradient *, Tensor *w, Tensor *dx);
/* Computes dw and dbias. Either tensor can be NULL. */
void linear_gemm_dw(Tape *, const LinearGemm *, const GemmGradient *, Tensor *x, Tensor *dw, Tensor *dbias);
