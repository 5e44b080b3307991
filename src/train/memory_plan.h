/* The memory that a rank will need, known before any is allocated. */
#pragma once

#include "config/config.h"
#include "pipeline/executor.h"
#include "train/attention_log.h"

/* The uses of memory. `slots` are saved activations and messages between stages. `gathered` has parameters and
 * gradients that ranks gather or sum temporarily, and NCCL's buffers. `scratch` is memory of kernels in addition to
 * their operands. `snapshot` is the copy of a checkpoint that is written during training. The last two parts are in
 * host memory, which on a CPU is the device's memory. */
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
    X(offloaded, "offloaded activations")

typedef enum MemoryPart {
#define X(name, title) MEMORY_##name,
    MEMORY_PARTS(X)
#undef X
        MEMORY_PART_COUNT
} MemoryPart;

extern const char *const MEMORY_TITLES[MEMORY_PART_COUNT];

/* Bytes that a rank will need (from a dry run on the null device). */
typedef struct MemoryPlan {
    size_t part[MEMORY_PART_COUNT]; /* the optimizer part has the optimizer's state and the master
                                       parameters */
    size_t offloaded_most;          /* offloaded activations if every token goes to the experts of one rank */
    bool discrete;       /* the device's memory, which holds all but the last two parts, is not the host's */
    ExecutorMemory unit; /* one slot, the transient space, and offloaded activations */
    int64_t in_flight;   /* number of slots */
    int communicators;   /* that NCCL opens for this rank */
    int64_t held;        /* parameters of which the rank computes with a part or all */
    AttentionLog attention; /* implementations of attention, on a GPU */
    /* Activations assume equal shares of all experts; unequal shares need more. */
    bool balanced;
} MemoryPlan;

/* The plan of the rank of `comm`; NULL: one rank. `target` is its device, whose kernels' plans are made too.
 * NULL: the device of the options, without the needs of its kernels. */
MemoryPlan memory_plan_new(const Config *, Comm *, const Device *target);
/* Bytes of device memory, which may be the host's; bytes of host memory if the device has its own. */
size_t memory_plan_total(const MemoryPlan *);
size_t memory_plan_host(const MemoryPlan *);
/* Parameters, main gradients and optimizer: bytes that do not depend on the batch. */
size_t memory_plan_state(const MemoryPlan *);
/* "parameters 1.5 GiB, main gradients 3.0 GiB, ...; total 9.0 GiB": parts that are zero are left out. */
void memory_plan_describe(const MemoryPlan *, Str *out);
/* The sum over the ranks of this process that share a device; for host memory over all of them. All ranks
 * call it. */
MemoryPlan memory_plan_together(const MemoryPlan *, const Device *, Comm *);
/* The sum over the ranks of this host, of parts in host memory. For ranks that are processes; all call it. */
MemoryPlan memory_plan_of_host(const MemoryPlan *, Comm *);
/* Checks that it fits into `available` bytes of the device, and into host memory. */
Err memory_plan_check(const MemoryPlan *together, size_t available);
/* The check for the memory of all ranks of a device and of a host. All ranks call it, and get the same error. */
Err memory_plan_fits(const MemoryPlan *own, const Device *, Comm *);
