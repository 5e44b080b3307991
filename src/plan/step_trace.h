/* Records the calls of a training step for simulate_step.h. A trainer runs the step on the null device, as one rank of
 * each pipeline stage; the stage's other ranks make the same calls. The order of ops, the buckets, the prefetches and
 * the waits are therefore those of the real step. */
#pragma once

#include "measure/rates.h"
#include "plan/plan.h"
#include "plan/simulate_step.h"

/* Calls of a step that have the same name and size. */
typedef struct StepWork {
    Rate work; /* ns: the time of one call */
    int family;
    RateSource source;
    int64_t calls; /* number of calls per step, on one rank of each pipeline stage */
} StepWork;

/* An operation between ranks, for reports. */
typedef struct TraceOperation {
    const char *site;
    CommKind kind;
    double bytes; /* size of the rank's larger buffer */
} TraceOperation;

/* The stages whose ranks take part in operations: the sender's and the receiver's of messages in one direction, or those
 * of a group's members. */
typedef struct TraceMeeting {
    int first, last, members;
    int way; /* messages: 1, or -1 for gradients; 0 for other operations */
} TraceMeeting;

/* The size of a group, and the number of its members on one host. */
typedef struct TraceGroup {
    int members, per_host;
} TraceGroup;

/* An assumption about GPUs: NCCL's kernels use 16 of 132 multiprocessors, and ops that run meanwhile become slower by
 * this fraction. With --gemm-sm-margin N, NCCL's kernels use the N multiprocessors that GEMMs never use. */
enum { TRACE_BLOCKS = 16, TRACE_MULTIPROCESSORS = 132 };

typedef struct Trace {
    const Rates *rates;
    int blocks;         /* the multiprocessors that operations between ranks use */
    double gemms, load; /* a GEMM's time compared with its rate; SimOperation.load */
    StepWork *work;     /* [n], in the order of the first calls */
    int n, room;
    int *slot; /* [slots]: a hash table of indices in `work`, or -1 */
    int slots;
    double link_ns[LINK_SOURCES]; /* the mean time of a rank's operations per step, by source */
    TraceGroup lacks;             /* a group for which the links have no times; 0 members if there is none */
    CommKind lacks_kind;
    /* The last recorded step. The stages' ranks share the numbers of meetings. */
    int ranks, meetings;
    SimRank *rank;              /* [ranks] */
    TraceOperation **operation; /* [ranks][SimRank.n_operations] */
    TraceMeeting *meeting;      /* [meetings] */
} Trace;

/* Records a step with this number of microbatches, and adds `each` times its calls to `work`. */
void step_trace_record(Trace *, const RunPlan *, const Device *target, int64_t microbatches, int64_t each);
void step_trace_free(Trace *);
