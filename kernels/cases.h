/* The rows of cases.def in three sizes: for tests, for the CPU and for a GPU. */
#pragma once

#include "kernels/ops.h"

typedef enum CaseContent {
    CONTENT_SIGNED,    /* floating-point numbers in [-1, 1]; for integer operands, 0 */
    CONTENT_POSITIVE,  /* numbers in (0, 1] */
    CONTENT_WIDE,      /* numbers of many magnitudes; used only in tests */
    CONTENT_WHOLE,     /* integers in [low, low + range) */
    CONTENT_POSITIONS, /* 0, 1, ... along the last dimension */
    CONTENT_DOCUMENTS, /* along the last dimension: the first position of each document of `range` positions */
    CONTENT_CHOICES,   /* i % range: each token copy's expert, assigned round-robin */
    CONTENT_ROWS,      /* each copy's row, with rows grouped by expert */
    CONTENT_COPIES,    /* the copy in each row; the inverse of CONTENT_ROWS */
    /* along the last dimension: the first row of each of several equal shares of `range` rows, then `range` */
    CONTENT_OFFSETS,
} CaseContent;

/* Types that depend on the run: CASE_STORAGE is the type of activations; CASE_PRECISE is the type of main
 * gradients, statistics and the router. */
enum { CASE_STORAGE = DTYPES, CASE_PRECISE };

/* An operand of a call. The operand is absent if it has no dimensions. */
typedef struct CaseOperand {
    int dtype; /* a DType, CASE_STORAGE or CASE_PRECISE */
    CaseContent content;
    bool updated;   /* has TENSOR_ACCUM */
    bool main_grad; /* has TENSOR_MAIN_GRAD */
    bool parameter; /* a parameter of a model, with a main gradient */
    bool shared;    /* a parameter whose gradient is one sum over all tokens */
    int64_t low, range;
    int64_t gap;  /* number of unused elements between rows */
    bool swapped; /* in memory, the first two dimensions are swapped */
    int ndim;
    int64_t dim[TENSOR_DIMS];
} CaseOperand;

typedef struct KernelCase {
    const char *name; /* for example "linear/fc1" */
    OpNumber op;
    const void *attr;
    CaseOperand in[CALL_IN], out[CALL_OUT];
} KernelCase;

typedef enum CaseSize { CASE_TEST, CASE_CPU, CASE_GPU, CASE_SIZES } CaseSize;

int kernel_case_count(void);
const KernelCase *kernel_case(CaseSize, int number);
/* Returns an operand's type if activations have the type `storage`. */
DType case_dtype(const CaseOperand *, DType storage);
/* Returns the operand as a tensor without memory, with its strides and flags. */
Tensor case_tensor(const CaseOperand *, DType storage);
/* Returns element i of an integer operand with n elements. */
int64_t case_integer(const CaseOperand *, int64_t i, int64_t n, uint64_t seed, uint64_t stream);
