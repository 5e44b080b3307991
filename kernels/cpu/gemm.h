/* Runs GEMMs on the pool's threads. */
#pragma once

#include "kernels/cpu/real.h"

/* Computes c [m,n] = op(a) op(b), or c += op(a) op(b) if `accumulate` is true; op is the identity or a
 * transpose. Matrices are row-major. Leading dimensions are in elements. `bias` [n] is added to each row;
 * `bias` must be NULL if `accumulate` is true. The result does not depend on the number of threads. */
typedef struct Gemm {
    bool transpose_a, transpose_b, accumulate;
    bool fixed_order; /* as in LinearAttr */
    int64_t m, n, k, lda, ldb, ldc;
    const real *a, *b, *bias;
    const void *b_narrow; /* the 16-bit or 8-bit values of b, if b is NULL */
    DType b_type;         /* the element type of b_narrow */
    /* row_scale [m] and column_scale [n], unless NULL, contain factors by which each sum is multiplied before
     * the bias is added. Both factors require transpose_b, and must be NULL if `accumulate` is true. */
    const real *row_scale, *column_scale;
    real *c;
} Gemm;

void KERNEL(gemm)(const Device *, const Gemm *);
