/* GEMMs with one-byte weights (kernels/ops.def, linear_quantized). */
#pragma once

#include "kernels/cuda/common.cuh"

/* Describes y [m,n] = (x w^T) of_row of_column + bias. w is I8 and x is 16-bit, or both are F8E4M3. */
typedef struct QuantizedGemm {
    int64_t m, n, k;
    const Tensor *x, *w, *bias, *y;  /* bias: NULL if there is none */
    const float *of_row, *of_column; /* factors: [m] or NULL, and [n] */
    bool steady;                     /* LinearAttr */
} QuantizedGemm;

/* gemm_quantized.cu. Returns true if the GPU can run the GEMM with these types, sizes and addresses. x need
 * not have data. The result does not depend on the number of rows. */
bool gemm_quantized_can(const Call *, const QuantizedGemm *);
void gemm_quantized(const Call *, const QuantizedGemm *);
