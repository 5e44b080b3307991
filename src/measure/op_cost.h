/* Computes the minimum work of an op call from the shapes of its operands. */
#pragma once

#include "kernels/attr.h"
#include "kernels/ops.h"

/* A GEMM's shape: the result is [m,n], and each sum has k terms. For a grouped GEMM, m or k counts the rows of all
 * experts. */
typedef struct GemmShape {
    int64_t m, n, k;
} GemmShape;
/* Sets the shape of the call's GEMM. Returns false if the call is not a GEMM. A gradient call that computes only a
 * bias's gradient is not a GEMM. */
bool work_gemm(OpNumber, const Call *, GemmShape *);
/* Returns how many keys a query of attention can have. A window of w keys counts as 2 w keys if attention is causal,
 * because work_flops halves the pairs of causal attention. */
double work_keys(const AttentionAttr *, const Tensor *k);
/* Returns the number of floating-point operations in a call that consists of GEMMs (a multiply-add counts as two), or 0
 * for any other call. */
double work_flops(OpNumber, const Call *);
/* Returns the minimum number of bytes that the call must read or write. */
double work_bytes(OpNumber, const Call *);
