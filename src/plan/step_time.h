/* Predicts the time of a training step from measured rates (measure/rates.h). A dry run on the null device lists the op
 * calls of a step with one and with two microbatches. The difference is the work of each further microbatch. A step
 * takes the sum of the ops' times or, on a GPU without CUDA graphs, the host's time for starting them, if it is
 * longer. */
#pragma once

#include "measure/rates.h"
#include "plan/plan.h"

/* Calls of a step that have the same name and size. */
typedef struct StepWork {
    Rate work; /* ns: the time of one call */
    int family;
    RateSource source;
    int64_t calls; /* number of calls per step */
} StepWork;

typedef struct StepTime {
    const Rates *rates; /* owned by the caller */
    StepWork *work;     /* [n], owned by the arena */
    int n;
    int64_t calls;
    double device_ns, host_ns, ns; /* the sum of the ops, the host's time, and the step's time */
    double family_ns[OP_FAMILIES], source_ns[RATE_SOURCES];
    double tokens_per_second;
    double
        mfu; /* model FLOP/s divided by the device's stated peak or, if it is unknown, a large GEMM's rate; NaN if neither is known */
} StepTime;

/* Predicts a step of the plan, which must have one rank. `target` is as for plan_make. Returns a user error that names
 * the ops for which the file has neither rates nor a roofline. */
Err step_time(const RunPlan *, const Device *target, const Rates *, Arena *, StepTime *);
