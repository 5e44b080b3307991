/* Predicts the time of a training step from measured rates (measure/rates.h). One rank of each pipeline stage runs a
 * step on the null device (step_trace.h), and a simulation (simulate_step.h) computes when each call runs. A step with
 * many microbatches is not simulated completely: two shorter steps differ by one period of the schedule, and each
 * further period takes the same time. On one rank, a step takes the sum of the ops' times. On a GPU without CUDA
 * graphs, it takes the host's time for starting the ops, if that is longer. */
#pragma once

#include "plan/step_trace.h"

typedef struct StepTime {
    const Rates *rates; /* owned by the caller */
    StepWork *work;     /* [n], owned by the arena */
    int n;
    int ranks;             /* of the layout */
    int64_t calls, events; /* events: those that were recorded for the simulation */
    /* the ops' time and the host's time on one rank (the mean over stages), and the step's time */
    double device_ns, host_ns, ns;
    double family_ns[OP_FAMILIES], source_ns[RATE_SOURCES];
    SimParts parts;               /* the mean over stages; several ranks only */
    int blocks;                   /* the multiprocessors that NCCL's kernels are assumed to use */
    double link_ns[LINK_SOURCES]; /* the time of a rank's operations, by source */
    double tokens_per_second;
    double
        mfu; /* model FLOP/s divided by the device's stated peak or, if it is unknown, a large GEMM's rate; NaN if neither is known */
} StepTime;

/* Predicts a step of the plan. `target` is as for plan_make. Unless `timeline` is NULL, draws the shorter of the steps
 * that were simulated into this file (timeline.h). The result is a user error if the file has neither rates nor a
 * roofline for some ops, or the links have no times for a group's operations. The error names the ops or the group. */
Err step_time(const RunPlan *, const Device *target, const Rates *, const char *timeline, Arena *,
              StepTime *);
/* Returns the time in ns that each further microbatch adds, without operations of data parallelism except those of
 * FSDP. Returns 0 if the simulation fails. Adds the number of simulated events to *events. */
double step_time_microbatch(const RunPlan *, const Device *target, const Rates *, int64_t *events);
