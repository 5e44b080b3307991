/* Repeats a GEMM to measure each algorithm and to compare its results bitwise: private to gemm*.cu. */
#ifndef ISOTRON_KERNELS_CUDA_GEMM_GEMM_BENCH_CUH
#define ISOTRON_KERNELS_CUDA_GEMM_GEMM_BENCH_CUH

#include "kernels/cuda/gemm/gemm_plan.cuh"

enum { GEMM_OPERANDS = 7 };

typedef struct GemmBench {
    Call call; /* where it runs */
    const GemmState *state;
    GemmPlan plan; /* a copy to try algorithms on */
    Gemm gemm;     /* of the tensors below */
    Tensor operand[GEMM_OPERANDS];
    size_t bytes[GEMM_OPERANDS], results, set; /* of each operand, padded; of the results; of a set of all */
    int64_t scales;                            /* of FP8's; the same for all sets */
    cudaStream_t stream;
    cudaEvent_t begin, end;
    int sets, next;
    char *memory; /* the sets, behind them the fingerprint of results and the scales */
} GemmBench;

/* The operands of Gemm need no memory: those of the bench have their own, in fewer sets where there is little
 * of it. false: there is not enough for one. */
bool gemm_bench_open(GemmBench *, const Device *, const GemmState *, const GemmPlan *, const Gemm *);
void gemm_bench_close(GemmBench *);
/* The GEMM uses this algorithm from now on. */
void gemm_bench_take(GemmBench *, const GemmAlgo *);
/* Milliseconds of each of `runs` that follow `before` others without a gap, separate passes of epilogues
 * included; negative: this algorithm does not run. */
double gemm_bench_run(GemmBench *, int before, int runs);
/* A fingerprint of all results over the first set; false: this algorithm does not run. */
bool gemm_bench_print(GemmBench *, unsigned long long *out);

#endif
