/* Runs GEMMs of contiguous tensors with cuBLASLt, or with Isotron's kernels in a fixed order of summation. */
#pragma once

#include "kernels/cuda/common.cuh"

/* Describes the GEMM c [m,n] = op(a) op(b), or c += op(a) op(b) if c has TENSOR_ACCUM. Matrices are row-major; op is
 * the identity or a transpose.
 *
 * a and b must have the same type. c must have this type or F32; if a and b are F32, c may also have a 16-bit
 * type. The bias must have the type of c. If `fixed_order` is true, operands may have any types. The result is
 * rounded once, to the type of c, except that it may be rounded to 16 bits before it is added to a 16-bit main
 * gradient.
 *
 * Absent operands are NULL. `bias` [n] is added to each row. `act` receives the activation of c. With `pre`,
 * c is multiplied by the derivative of the activation at `pre`. With `bias`, `act` or `pre`, c must not
 * accumulate. `dbias` receives the column sums of a; with `dbias`, a must be the gradient dy [k,m].
 *
 * FP8 GEMMs write F32 or a 16-bit type, require transpose_b, and allow only one operand to be E5M2. The sizes
 * of an FP8 GEMM must be multiples of 16, and its scales a_inverse and b_inverse must be in device memory. */
typedef struct Gemm {
    const char *op;                      /* the op's name, for messages */
    bool transpose_a, transpose_b;       /* a is stored as [k,m], b as [n,k] */
    bool fixed_order, by_chunks, steady; /* as in LinearAttr */
    int64_t m, n, k;
    const Tensor *a, *b, *bias, *pre, *c, *act, *dbias;
    /* [n]: factors by which the columns of c are multiplied before the bias is added, or NULL; only for gemm_invariant
     * */
    const float *of_column;
    Activation activation;
    const void *a_inverse, *b_inverse; /* only for FP8: see kernels/fp8_blocks.h */
    Fp8Blocks a_blocks, b_blocks;
    bool fast; /* only for FP8: see Fp8GemmAttr */
} Gemm;

void gemm_run(const Call *, const Gemm *);
/* Chooses the algorithm for gemm_run. If the GEMM is large, the algorithms are measured. The operands need not have
 * memory. Returns how many bytes of scratch memory gemm_run needs. */
size_t gemm_plan(const Call *, const Gemm *);

/* gemm_narrow.cu: linear layers with few outputs, in a fixed order. */
bool gemm_is_narrow(const Gemm *);
size_t gemm_narrow_scratch(const Gemm *);
void gemm_narrow(const Call *, const Gemm *);

/* Writes the activation of y to `act`, unless `act` is NULL. */
void gemm_activate(const Call *, Tensor *y, Tensor *act, Activation);
/* Multiplies dx in place by the derivative of the activation at `pre`, unless `pre` is NULL. */
void gemm_through_activation(const Call *, Tensor *dx, Tensor *pre, Activation);

/* linear_algos.h describes this function. */
int gemm_take_algo(const Call *, const Gemm *, int n);

/* Writes or adds the column sums of dy to dbias [n]. If `fixed_order` is true, each column is summed over the
 * positions of each sample in order, then over the samples. */
void bias_gradient(const Call *, const Tensor *dy, const Tensor *dbias, bool fixed_order);
size_t bias_gradient_scratch(const Tensor *dy, bool fixed_order);
/* Writes or adds the sums of `partial` [chunks,n] over the chunks to the n elements of `out`. */
void sum_chunks(const Call *, const float *partial, int64_t chunks, int64_t n, const Tensor *out);
/* Computes y [rows,n] = x + bias, or sets y to the bias if x is NULL. All operands have the same type. */
void rows_plus_bias(cudaStream_t, DType, const void *x, const void *bias, void *y, int64_t rows, int64_t n);
