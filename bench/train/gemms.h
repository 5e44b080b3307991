/* Measures how long a step's GEMMs take in the step, and how long they take alone. On the CPU, "alone" means in
 * BLAS, with BLAS's threads, in fp32. On a GPU, "alone" means in consecutive calls of the same op with the same
 * shapes. */
#pragma once

#include "kernels/attr.h"
#include "kernels/ops.h"
#include "measure/op_cost.h"
#include "measure/op_runner.h"

/* All calls of an op with the same operand types and shapes. The number of rows per expert can vary between calls;
 * `shape` and the operands are those of the first call. */
typedef struct StepGemm {
    OpNumber op;
    GemmShape shape;
    int64_t rows;  /* of all experts; 0 if there are no experts */
    int64_t calls; /* number of calls per step */
    double flops;  /* FLOPs of all calls; a multiply-add counts as two */
    /* the calls' total time in all measured steps, and their total time when they run alone */
    double ours_ns, alone_ns;
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
    float *a, *b, *c; /* the operands of the replay in BLAS */
} StepGemms;

/* Counts a call. Ignores an op that is not a GEMM. */
void gemms_count(StepGemms *, const OpDef *, const Call *);
/* Returns the index of the call's StepGemm, or -1 if the op is not a GEMM or no such call was counted. */
int gemms_find(const StepGemms *, const OpDef *, const Call *);
/* Runs the GEMMs of one step in BLAS on scratch operands, after one warm-up call. Returns the time in ns. */
int64_t gemms_through_blas(StepGemms *, int threads);
/* Measures each GEMM alone on the device, and sets alone_ns to the time that the GEMM's calls in `steps` steps
 * would take. */
void gemms_on_device(StepGemms *, Device *, int64_t steps);
double gemms_flops(const StepGemms *); /* returns the FLOPs of a step */
void gemms_free(StepGemms *);
