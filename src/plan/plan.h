/* Plans a run of any size without running it: parameters, FLOPs, memory of each rank, and the pipeline schedule's
 * bubble. All ranks of a pipeline stage need the same memory, so one rank per stage is planned. The planner uses the
 * dry run with which training begins. */
#pragma once

#include "train/memory_plan.h"

typedef struct StagePlan {
    int rank; /* first rank of the stage */
    MemoryPlan memory;
} StagePlan;

typedef struct RunPlan {
    const Config *config; /* owned by the caller */
    Layout layout;        /* layout of rank 0 */
    PipelineLayout pipeline;
    int64_t microbatches;  /* number of microbatches per rank, for the last global batch size */
    PipelineSpec spec;     /* the schedule for this batch size */
    StagePlan *stages;     /* [pipeline.ranks] */
    int largest;           /* the stage that needs the most memory */
    ModelCount parameters; /* parameters of the whole model */
    double flops;          /* FLOPs of the forward and backward of a sample */
    double bubble; /* the part of a step that a pipeline rank waits, if all passes take equal times; NaN if it
                      is too much work to find out */
} RunPlan;

/* The options must have passed the rules of training. `target` may be NULL, as for memory_plan_new. The arena owns the
 * plan. A mistake in the pipeline that no rule detects is a user error. */
Err plan_make(const Config *, const Device *target, Arena *, RunPlan *out);
/* Plans only the layout, the microbatches, and the pipeline's schedule and bubble. */
Err plan_schedule(const Config *, Arena *, RunPlan *out);
MemoryPlan plan_rank(const Config *, const Device *target, int rank);
/* Memory of the largest rank in bytes. */
size_t plan_bytes(const RunPlan *);
