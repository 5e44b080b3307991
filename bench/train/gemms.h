/* The GEMMs of a step: their time in the step, and alone. On the CPU "alone" is BLAS with its own threads, in
 * fp32; on a GPU the same op with the same shapes, back to back. */
#ifndef ISOTRON_BENCH_GEMMS_H
#define ISOTRON_BENCH_GEMMS_H

#include "bench/op_runner.h"
#include "bench/op_cost.h"
#include "kernels/attr.h"
#include "kernels/ops.h"

/* All calls of one op with one kind of operands. */
typedef struct StepGemm {
    OpNumber op;
    GemmShape shape;
    int64_t calls;            /* per step */
    double ours_ns, alone_ns; /* of all measured steps; of as many calls alone */
    CaseOperand in[CALL_IN], out[CALL_OUT];
    union {
        LinearAttr linear;
        Fp8GemmAttr fp8;
    } attr;
} StepGemm;

enum { STEP_GEMMS = 96 };

typedef struct StepGemms {
    StepGemm at[STEP_GEMMS];
    int count;
    float *a, *b, *c; /* of the replay through BLAS */
} StepGemms;

/* The index of the call's GEMM, added to the list if it is new; -1: the op is no GEMM. */
int gemms_find(StepGemms *, const OpDef *, const Call *);
/* Runs the GEMMs of one step through BLAS on scratch operands: one call to warm up, then all. Returns ns. */
int64_t gemms_through_blas(StepGemms *, int threads);
/* Measures each GEMM on the device; sets alone_ns to the time of `steps` steps. */
void gemms_on_device(StepGemms *, Device *, int64_t steps);
/* Floating-point operations of one call, and of all calls of a step; multiply-adds count as two. */
double gemm_flops(const StepGemm *);
double gemms_flops(const StepGemms *);
void gemms_free(StepGemms *);

#endif
