/* The GEMMs of a step: their time in the step, and alone. On the CPU "alone" is BLAS with its own threads, in
 * fp32; on a GPU the same op with the same shapes, back to back. */
#pragma once

#include "kernels/attr.h"
#include "kernels/ops.h"
#include "measure/op_cost.h"
#include "measure/op_runner.h"

/* All calls of one op with one kind of operands. Experts may have other rows in each call; shape and operands are
 * those of the first. */
typedef struct StepGemm {
    OpNumber op;
    GemmShape shape;
    int64_t calls;            /* per step */
    double flops;             /* FLOPs of all of them; multiply-adds count as two */
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

/* Counts a call; an op that is no GEMM is ignored. */
void gemms_count(StepGemms *, const OpDef *, const Call *);
/* The index of the call's GEMM; -1: the op is no GEMM, or none was counted. */
int gemms_find(const StepGemms *, const OpDef *, const Call *);
/* Runs the GEMMs of one step through BLAS on scratch operands: one call to warm up, then all. Returns ns. */
int64_t gemms_through_blas(StepGemms *, int threads);
/* Measures each GEMM on the device; sets alone_ns to the time of `steps` steps. */
void gemms_on_device(StepGemms *, Device *, int64_t steps);
double gemms_flops(const StepGemms *); /* FLOPs of a step */
void gemms_free(StepGemms *);
