/* Runs GEMMs with CBLAS, split over the threads of the pool. */
#pragma once

#include "kernels/cpu/real.h"

/* Computes c [m,n] = op(a) op(b), or c += op(a) op(b) if `accumulate`; op is the identity or a transpose.
 * Matrices are row-major. Leading dimensions are in elements. `bias` [n] is added to each row; it must be NULL if
 * `accumulate`. The result does not depend on the number of threads. */
typedef struct Gemm {
    bool transpose_a, transpose_b, accumulate;
    bool fixed_order; /* as in LinearAttr */
    int64_t m, n, k, lda, ldb, ldc;
    const real *a, *b, *bias;
    const void *b_narrow; /* instead of b, which is then NULL: values of 16 or 8 bits */
    DType b_type;         /* the type of the elements of b_narrow */
    /* If they are not NULL, sums are multiplied by a factor of their row [m] and one of their column [n], before the bias
     * is added. Only with transpose_b, and not with `accumulate`. */
    const real *row_scale, *column_scale;
    real *c;
} Gemm;

void KERNEL(gemm)(const Device *, const Gemm *);
