/* The minimum work of a call of an op, computed from the operands' shapes. */
#pragma once

#include "kernels/ops.h"

/* The shape of a GEMM: the result is [m,n], and sums have k terms. For a grouped GEMM, m or k is the number
 * of rows of all experts. */
typedef struct GemmShape {
    int64_t m, n, k;
} GemmShape;
/* Returns false if the call is not a GEMM. The gradient of only a bias is not a GEMM. */
bool work_gemm(OpNumber, const Call *, GemmShape *);
/* Number of floating-point operations of a call that consists of GEMMs (a multiply-add counts as two); 0 for
 * any other call. */
double work_flops(OpNumber, const Call *);
/* Number of bytes that the call must read or write. */
double work_bytes(OpNumber, const Call *);
