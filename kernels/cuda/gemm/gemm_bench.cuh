/* Repeats a GEMM to measure each algorithm and to compare its results bitwise: private to gemm*.cu. */
#pragma once

#include "kernels/cuda/gemm/gemm_plan.cuh"

enum { GEMM_OPERANDS = 7 };

typedef struct GemmBench {
    Call call; /* the device and stream */
    const GemmState *state;
    GemmPlan plan; /* a copy to try algorithms on */
    Gemm gemm;     /* with the tensors below */
    Tensor operand[GEMM_OPERANDS];
    size_t bytes[GEMM_OPERANDS], results,
        set;        /* sizes of each operand, padded; of the results; of a complete set */
    int64_t scales; /* number of FP8 scales; all sets share them */
    cudaStream_t stream;
    cudaEvent_t begin, end;
    int sets, next;
    char *memory; /* the sets, then the fingerprint of results and the scales */
} GemmBench;

/* The operands of Gemm need no memory: the bench allocates its own, with fewer sets if memory is short.
 * False: there is not enough for one set. */
bool gemm_bench_open(GemmBench *, const Device *, const GemmState *, const GemmPlan *, const Gemm *);
void gemm_bench_close(GemmBench *);
/* Makes the GEMM use this algorithm. */
void gemm_bench_take(GemmBench *, const GemmAlgo *);
/* Milliseconds of each of `runs` runs, after `before` unmeasured runs without a gap, including separate passes
 * of epilogues; negative: this algorithm does not run. */
double gemm_bench_run(GemmBench *, int before, int runs);
/* A fingerprint of all results over the first set; false: this algorithm does not run. */
bool gemm_bench_print(GemmBench *, unsigned long long *out);
