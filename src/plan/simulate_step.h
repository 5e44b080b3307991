/* Simulates a training step on the ranks of a pipeline. A rank's calls (SimEvent) are those of the executor, in order,
 * so that this file models only what runs when:
 *
 *     an op           runs after the host has started it, and after all earlier ops and waits of its rank
 *     an operation    between ranks starts after all earlier ops and waits of its rank, and after earlier operations
 *                     of its channel (comm/comm.h). If it has a meeting, it starts when all members are ready
 *     a wait          delays later ops until the operation has finished
 *     a host's wait   delays the host until all earlier ops have finished
 *
 * An operation's kernel uses multiprocessors. If the rank computes meanwhile, it loses load * ns, which are added at the
 * wait. A shorter op or operation, a smaller load, or a faster host never delays any event. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "comm/mesh.h"

typedef enum SimKind { SIM_OP, SIM_START, SIM_WAIT, SIM_HOST_WAIT } SimKind;

typedef struct SimEvent {
    SimKind kind;
    int what;  /* SIM_START and SIM_WAIT: the operation's index. SIM_OP: for the caller */
    double ns; /* SIM_OP: the op's time */
} SimEvent;

typedef struct SimOperation {
    int channel; /* number of the rank's channel */
    int meeting; /* the k-th operations of a meeting on all its ranks start together; -1 if there is no meeting */
    unsigned axes; /* mask of its group's axes */
    bool host;     /* whether the host, not the device, waits for it */
    double ns, load;
} SimOperation;

typedef struct SimRank {
    SimEvent *events;
    SimOperation *operations; /* in the order of their SIM_STARTs */
    int64_t n;
    int n_operations, n_channels;
} SimRank;

/* A time interval of a rank. */
typedef struct SimSpan {
    int rank, channel; /* channel: -1 for ops */
    int what;          /* SimEvent.what of the op or operation */
    double begin, end; /* ns */
} SimSpan;

typedef struct SimStep {
    const SimRank *rank; /* [ranks] */
    int ranks;
    const int *members; /* [meetings]: how many ranks take part */
    int meetings;
    double launch_ns;                         /* the host's time for starting an op or operation */
    void (*draw)(void *arg, const SimSpan *); /* called for each op and operation; may be NULL */
    void *arg;
} SimStep;

enum { SIM_AXES = 1 << AXES };

/* Where the time of a rank goes. The sum of all parts is the step's time. */
typedef struct SimParts {
    double ops, load;         /* ops, and their delays by operations */
    double exposed[SIM_AXES]; /* waits for operations in progress, by axes */
    double bubble;            /* waits for other ranks to be ready for an operation */
    double host;              /* waits for the host to start an op */
} SimParts;

typedef struct SimTimes {
    double ns;       /* the step's time */
    SimParts *parts; /* [ranks] */
} SimTimes;

/* Simulates a step. An error (ERR_FAILED) names a deadlock. */
Err simulate_step(const SimStep *, Arena *, SimTimes *);
