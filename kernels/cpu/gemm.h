/* GEMMs through CBLAS, split over the pool. */
#pragma once

#include "kernels/cpu/real.h"

/* c [m,n] = op(a) op(b), row-major, leading dimensions in elements; op is the identity or a transpose. `accumulate`: c
 * += op(a) op(b). `bias` [n] (NULL: none) is added to each row, only without `accumulate`. The result does not depend
 * on the number of threads. */
typedef struct Gemm {
    bool transpose_a, transpose_b, accumulate;
    bool fixed_order; /* as in LinearAttr */
    int64_t m, n, k, lda, ldb, ldc;
    const real *a, *b, *bias;
    real *c;
} Gemm;

void KERNEL(gemm)(const Device *, const Gemm *);
