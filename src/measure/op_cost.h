/* The least work of a call, determined by its operands. */
#pragma once

#include "kernels/ops.h"

/* The shape of op(a) op(b): result [m,n], depth k; for experts, m or k counts the rows of all experts. */
typedef struct GemmShape {
    int64_t m, n, k;
} GemmShape;
/* False: the call is not a GEMM; a gradient of a bias only is none. */
bool work_gemm(OpNumber, const Call *, GemmShape *);
/* Number of floating-point operations of a call that consists of GEMMs (a multiply-add counts as two); else 0. */
double work_flops(OpNumber, const Call *);
/* Number of bytes that the call must read or write. */
double work_bytes(OpNumber, const Call *);
