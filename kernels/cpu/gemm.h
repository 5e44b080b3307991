/* Runs GEMMs with CBLAS, split over the pool's threads. */
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
    const void *b_narrow; /* instead of b, which is then NULL: 16-bit or 8-bit values */
    DType b_type;         /* the element type of b_narrow */
    /* If these are not NULL, each sum is multiplied by its row's factor [m] and its column's factor [n] before the bias
     * is added. Only with transpose_b, and not with `accumulate`. */
    const real *row_scale, *column_scale;
    real *c;
} Gemm;

void KERNEL(gemm)(const Device *, const Gemm *);
