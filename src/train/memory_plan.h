/* Computes how much memory a rank will need, before any memory is allocated. */
#pragma once

#include "config/config.h"
#include "pipeline/executor.h"
#include "train/attention_log.h"

/* The parts of memory. `slots` contains saved activations and messages between stages. `gathered` contains
 * NCCL's buffers, and buffers for the parameters that ranks all-gather and the gradients that they sum.
 * `scratch` is the memory that kernels need in addition to their operands. `snapshot` is the copy of a
 * checkpoint that is written during training. `snapshot`, `offloaded` and `offloaded_state` (with master
 * parameters) are in host memory; on a CPU, host memory is the device's memory. */
#define MEMORY_PARTS(X)                                                                                      \
    X(parameters, "parameters")                                                                              \
    X(gradients, "main gradients")                                                                           \
    X(optimizer, "optimizer")                                                                                \
    X(slots, "activations")                                                                                  \
    X(transient, "transient")                                                                                \
    X(gathered, "communication")                                                                             \
    X(tables, "tables")                                                                                      \
    X(inputs, "batches")                                                                                     \
    X(scratch, "kernels")                                                                                    \
    X(snapshot, "checkpoint copy")                                                                           \
    X(offloaded, "offloaded activations")                                                                    \
    X(offloaded_state, "offloaded optimizer")

typedef enum MemoryPart {
#define X(name, title) MEMORY_##name,
    MEMORY_PARTS(X)
#undef X
        MEMORY_PART_COUNT
} MemoryPart;

extern const char *const MEMORY_TITLES[MEMORY_PART_COUNT];

/* The number of bytes that a rank will need. A dry run on the null device computes the number. */
typedef struct MemoryPlan {
    size_t part[MEMORY_PART_COUNT]; /* the optimizer's part includes the master parameters */
    size_t most[MEMORY_PART_COUNT]; /* 0, or set by memory_plan_worst */
    /* whether the device has separate memory, which then contains all parts up to `scratch` */
    bool discrete;
    /* the sizes of one slot, of the transient space, and of offloaded activations */
    ExecutorMemory unit;
    int64_t in_flight;      /* number of slots */
    int communicators;      /* number of communicators that NCCL opens for this rank */
    int64_t held;           /* number of parameters that the rank holds, fully or in part */
    AttentionLog attention; /* the attention implementations that a GPU uses */
    /* Sizes of activations assume that all experts process equal shares of the tokens. Unequal shares need at most the
     * memory of memory_plan_worst. */
    bool balanced;
} MemoryPlan;

/* Computes the plan for the rank of the Comm, or for a run on one rank if the Comm is NULL. If `target` is not
 * NULL, it is the rank's device, and the plan includes the memory that its kernels need. Otherwise, the plan is
 * for the device that the options select, without memory for kernels. */
MemoryPlan memory_plan_new(const Config *, Comm *, const Device *target);
/* If the plan is balanced, sets `most` to the sizes if all tokens are sent to this rank's experts. The other arguments
 * are those of memory_plan_new. */
void memory_plan_worst(MemoryPlan *, const Config *, Comm *, const Device *target);
/* Returns the number of bytes of device memory that the rank needs; on a CPU, device memory is host memory.
 * memory_plan_host returns the number of bytes of host memory that the rank also needs if the device has separate
 * memory, and 0 otherwise. */
size_t memory_plan_total(const MemoryPlan *);
/* Returns the same sum of the sizes that memory_plan_worst has set. */
size_t memory_plan_most(const MemoryPlan *);
size_t memory_plan_host(const MemoryPlan *);
/* Returns the number of bytes that parameters, main gradients and optimizer state need. The number does not depend on
 * the batch. */
size_t memory_plan_state(const MemoryPlan *);
/* Appends text such as "parameters 1.5 GiB, main gradients 3.0 GiB, ..., total 9.0 GiB". Parts that are zero are
 * omitted. */
void memory_plan_describe(const MemoryPlan *, Str *out);
/* Sums the parts over the ranks of this process that share a device, and the parts in host memory over all
 * ranks of this process. All ranks must call this function. */
MemoryPlan memory_plan_together(const MemoryPlan *, const Device *, Comm *);
/* Sums the parts in host memory over the ranks of this host. The ranks must run as separate processes, and
 * all ranks must call this function. */
MemoryPlan memory_plan_of_host(const MemoryPlan *, Comm *);
/* Checks that the plan fits into `available` bytes of device memory, and into host memory. */
Err memory_plan_check(const MemoryPlan *together, size_t available);
/* Checks that there is enough memory for all ranks on a device and on a host. All ranks must call this function, and
 * all get the same error. */
Err memory_plan_fits(const MemoryPlan *own, const Device *, Comm *);
