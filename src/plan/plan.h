/* Plans a run of any size without executing it. A plan contains the parameters, the FLOPs, the memory of each
 * rank, and the bubble of the pipeline schedule. All ranks of a pipeline stage need the same memory, so one
 * rank per stage is planned. The memory is computed by the same dry run that training performs before its
 * first step. */
#pragma once

#include "train/memory_plan.h"

typedef struct StagePlan {
    int rank; /* the stage's first rank */
    MemoryPlan memory;
} StagePlan;

typedef struct RunPlan {
    const Config *config; /* owned by the caller */
    Layout layout;        /* the layout of rank 0 */
    PipelineLayout pipeline;
    int64_t microbatches;  /* number of microbatches per rank at the final global batch size */
    PipelineSpec spec;     /* the schedule for the final global batch size */
    StagePlan *stages;     /* [pipeline.ranks] */
    int largest;           /* the stage that needs the most memory */
    ModelCount parameters; /* parameters of the full model */
    double flops;          /* FLOPs of one sample's forward and backward passes */
    double
        /* the fraction of a step during which a pipeline rank waits, assuming that all passes take equal
         * times; NaN if it is too expensive to compute */
        bubble;
} RunPlan;

/* Plans a run. The options must have passed the training rules. `target` may be NULL, as for memory_plan_new.
 * The arena owns the plan. An invalid pipeline layout that no rule rejects is a user error. */
Err plan_make(const Config *, const Device *target, Arena *, RunPlan *out);
/* Plans only the layout, the microbatches, and the pipeline's schedule and bubble. */
Err plan_schedule(const Config *, Arena *, RunPlan *out);
MemoryPlan plan_rank(const Config *, const Device *target, int rank);
/* Returns the memory, in bytes, of the rank that needs the most memory. */
size_t plan_bytes(const RunPlan *);
/* Returns the size of a checkpoint of the run. */
double plan_checkpoint_bytes(const Config *);
