/* GEMMs of contiguous tensors, through cuBLASLt or in a fixed order of summation. */
#ifndef ISOTRON_KERNELS_CUDA_GEMM_GEMM_CUH
#define ISOTRON_KERNELS_CUDA_GEMM_GEMM_CUH

#include "kernels/cuda/common.cuh"

/* c [m,n] = op(a) op(b), row-major; op transposes if asked; c += instead if c accumulates. `bias` [n] (NULL:
 * none) is added to each row of a fresh c. a and b are of one type, c and bias of that type or c of F32;
 * GEMMs of F32 may also end in 16 bits, and in a fixed order the types are free. Rounded once, to c's type;
 * what is added to a main gradient of 16 bits may be rounded to them before. `act` (NULL: none) is the
 * activation of a fresh c; with `pre` (NULL: none) a fresh c is multiplied by the derivative of the
 * activation there; `dbias` (NULL: none) are the sums of a's columns, as of the gradient dy [k,m]. GEMMs of
 * FP8 values (not both E5M2; only transpose_b) end in F32 or 16 bits, their sizes are multiples of 16, and
 * a_inverse and b_inverse, which scale them, are in device memory. */
typedef struct Gemm {
    const char *op;                /* the op's name, for messages */
    bool transpose_a, transpose_b; /* a is stored as [k,m], b as [n,k] */
    bool fixed_order;              /* LinearAttr */
    int64_t m, n, k;
    const Tensor *a, *b, *bias, *pre, *c, *act, *dbias;
    Activation activation;
    const void *a_inverse, *b_inverse; /* of FP8: kernels/fp8_blocks.h */
    Fp8Blocks a_blocks, b_blocks;
    bool fast; /* of FP8: Fp8GemmAttr */
} Gemm;

void gemm_run(const Call *, const Gemm *);
/* Chooses how gemm_run will do it, by measurement if the GEMM is large; the operands need no memory.
 * Returns the scratch memory that it takes. */
size_t gemm_plan(const Call *, const Gemm *);

/* act = the activation of y, unless `act` is NULL. */
void gemm_activate(const Call *, Tensor *y, Tensor *act, Activation);
/* dx, in place, times the derivative of the activation at `pre`, unless that is NULL. */
void gemm_through_activation(const Call *, Tensor *dx, Tensor *pre, Activation);

/* linear_algos.h */
int gemm_take_algo(const Call *, const Gemm *, int n);

/* dbias [n], = or +=: the sums of dy's columns. In a fixed order: of each sample in order, then theirs. */
void bias_gradient(const Call *, const Tensor *dy, const Tensor *dbias, bool fixed_order);
size_t bias_gradient_scratch(const Tensor *dy, bool fixed_order);
/* y [rows,n] = x + bias, or the bias alone if x is NULL; all of one type. */
void rows_plus_bias(cudaStream_t, DType, const void *x, const void *bias, void *y, int64_t rows, int64_t n);

#endif
