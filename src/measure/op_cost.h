/* Computes the minimum work of a call of an op from the shapes of its operands. */
#pragma once

#include "kernels/ops.h"

/* The shape of a GEMM: the result is [m,n], and sums have k terms. For a grouped GEMM, m or k is the number
 * of rows of all experts. */
typedef struct GemmShape {
    int64_t m, n, k;
} GemmShape;
/* Sets the shape of a GEMM. Returns false if the call is not a GEMM. The gradient of only a bias is not a GEMM. */
bool work_gemm(OpNumber, const Call *, GemmShape *);
/* Returns the number of floating-point operations of a call that consists of GEMMs (a multiply-add counts as two), or
 * 0 for any other call. */
double work_flops(OpNumber, const Call *);
/* Returns the minimum number of bytes that the call must read or write. */
double work_bytes(OpNumber, const Call *);
