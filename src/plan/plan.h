/* A plan of a run of any size, without running it: parameters, FLOPs, memory of each rank, and the pipeline schedule's
 * bubble. All ranks of a pipeline stage need the same memory, so one rank of each stage is planned, by the dry run that
 * also begins a training run. */
#pragma once

#include "train/memory_plan.h"

typedef struct StagePlan {
    int rank; /* the first of the stage */
    MemoryPlan memory;
} StagePlan;

typedef struct RunPlan {
    const Config *config; /* the caller's */
    Layout layout;        /* layout of rank 0 */
    PipelineLayout pipeline;
    int64_t microbatches;  /* microbatches of a rank, with the last global batch size */
    PipelineSpec spec;     /* the schedule, with the same batch */
    StagePlan *stages;     /* [pipeline.ranks] */
    int largest;           /* the stage that takes most memory */
    ModelCount parameters; /* parameters of the whole model */
    double flops;          /* FLOPs of the forward and backward of a sample */
    double bubble; /* the part of a step that a pipeline rank waits, if all passes take equal times; NaN if it
                      is too much work to find out */
} RunPlan;

/* The options have kept the rules of training. `target` NULL: as for memory_plan_new. The plan belongs to the arena. A
 * mistake in the pipeline that no rule detects is a user error. */
Err plan_make(const Config *, const Device *target, Arena *, RunPlan *out);
/* Only the layout, the microbatches, and the pipeline's schedule and bubble. */
Err plan_schedule(const Config *, Arena *, RunPlan *out);
MemoryPlan plan_rank(const Config *, const Device *target, int rank);
/* Bytes of the largest rank. */
size_t plan_bytes(const RunPlan *);
