/* The least work of a call, determined by its operands. */
#pragma once

#include "kernels/ops.h"

/* op(a) op(b) [m,n], depth k; for experts, with the rows of all experts. */
typedef struct GemmShape {
    int64_t m, n, k;
} GemmShape;
/* False: the call is no GEMM (nor is the gradient of a bias alone). */
bool work_gemm(OpNumber, const Call *, GemmShape *);
/* Floating-point operations of a call that consists of GEMMs, a multiply-add counts as two; else 0. */
double work_flops(OpNumber, const Call *);
/* Bytes that the call must read or write. */
double work_bytes(OpNumber, const Call *);
