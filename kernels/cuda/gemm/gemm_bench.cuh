/* Runs a GEMM repeatedly, to measure its algorithms and to compare their results bitwise. Only gemm*.cu includes this
 * file. */
#pragma once

#include "kernels/cuda/gemm/gemm_plan.cuh"

enum { GEMM_OPERANDS = 7 };

typedef struct GemmBench {
    Call call; /* the device and the stream */
    const GemmState *state;
    GemmPlan plan; /* a private copy, in which algorithms are tried */
    Gemm gemm;     /* its operands are the tensors in `operand` */
    Tensor operand[GEMM_OPERANDS];
    /* padded sizes in bytes of each operand, of the results, and of a set */
    size_t bytes[GEMM_OPERANDS], results, set;
    int64_t scales; /* number of FP8 scales, which all sets share */
    cudaStream_t stream;
    cudaEvent_t begin, end;
    int sets, next;
    char *memory; /* the sets, followed by the fingerprint of the results, then the scales */
} GemmBench;

/* Allocates sets of operands, but fewer if there is little memory. The operands of Gemm therefore need no memory.
 * Returns false if there is not enough memory for one set. */
bool gemm_bench_open(GemmBench *, const Device *, const GemmState *, const GemmPlan *, const Gemm *);
void gemm_bench_close(GemmBench *);
/* Selects the algorithm for the next runs. */
void gemm_bench_take(GemmBench *, const GemmAlgo *);
/* Returns the mean time per run, in milliseconds, of `runs` runs that directly follow `before` unmeasured
 * runs. The time includes epilogues that run as separate passes. The result is negative if the algorithm fails. */
double gemm_bench_run(GemmBench *, int before, int runs);
/* Runs the GEMM on the first set, and computes a fingerprint of all results. Returns false if the algorithm
 * fails. */
bool gemm_bench_print(GemmBench *, unsigned long long *out);
