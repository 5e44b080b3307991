/* GEMMs of contiguous tensors, through cuBLASLt or in a fixed order of summation. */
#pragma once

#include "kernels/cuda/common.cuh"

/* c [m,n] = op(a) op(b), row-major; op is the identity or transposes; c += instead if c accumulates.
 *
 * a and b have one type; c and bias have that type, or c is F32. GEMMs of F32 may also end in 16 bits, and with
 * a fixed order the types are free. The result is rounded once, to c's type; a summand of a 16-bit main gradient
 * may first be rounded to 16 bits.
 *
 * Optional operands are NULL. The first three need a c that does not accumulate: `bias` [n] is added to each
 * row; `act` is the activation of c; c is multiplied by the derivative of the activation at `pre`. `dbias`
 * receives the sums of a's columns; a is then the gradient dy [k,m].
 *
 * GEMMs of FP8 values (not both E5M2; only transpose_b) end in F32 or 16 bits. Their sizes are multiples of 16,
 * and their scales a_inverse and b_inverse are in device memory. */
typedef struct Gemm {
    const char *op;                /* the op's name, for messages */
    bool transpose_a, transpose_b; /* a is stored as [k,m], b as [n,k] */
    bool fixed_order;              /* LinearAttr */
    int64_t m, n, k;
    const Tensor *a, *b, *bias, *pre, *c, *act, *dbias;
    Activation activation;
    const void *a_inverse, *b_inverse; /* FP8 only: kernels/fp8_blocks.h */
    Fp8Blocks a_blocks, b_blocks;
    bool fast; /* FP8 only: Fp8GemmAttr */
} Gemm;

void gemm_run(const Call *, const Gemm *);
/* Chooses the algorithm of gemm_run, by measurement if the GEMM is large; the operands need no memory.
 * Returns the scratch memory that it needs. */
size_t gemm_plan(const Call *, const Gemm *);

/* act = the activation of y; no-op if `act` is NULL. */
void gemm_activate(const Call *, Tensor *y, Tensor *act, Activation);
/* Multiplies dx, in place, by the derivative of the activation at `pre`; no-op if `pre` is NULL. */
void gemm_through_activation(const Call *, Tensor *dx, Tensor *pre, Activation);

/* linear_algos.h */
int gemm_take_algo(const Call *, const Gemm *, int n);

/* dbias [n], = or +=: the sums of dy's columns. In a fixed order: over each sample in order, then over
 * samples. */
void bias_gradient(const Call *, const Tensor *dy, const Tensor *dbias, bool fixed_order);
size_t bias_gradient_scratch(const Tensor *dy, bool fixed_order);
/* y [rows,n] = x + bias, or only the bias if x is NULL; all have one type. */
void rows_plus_bias(cudaStream_t, DType, const void *x, const void *bias, void *y, int64_t rows, int64_t n);
