/* How much memory a rank will take, known before it takes any. */
#ifndef ISOTRON_TRAIN_MEMORY_PLAN_H
#define ISOTRON_TRAIN_MEMORY_PLAN_H

#include "config/config.h"
#include "pipeline/executor.h"
#include "train/attention_log.h"

/* Bytes that a run will take, known before it takes any (a dry run on the null device). */
typedef struct MemoryPlan {
    size_t parameters; /* values, main gradients, masters */
    size_t optimizer, slots, transient, tables;
    size_t snapshot;        /* of a checkpoint that is written beside the run: in the host's memory */
    size_t inputs;          /* the batches of a step */
    size_t scratch;         /* of kernels, besides their operands */
    size_t offloaded;       /* activations in the host's memory, */
    size_t offloaded_most;  /* and how many there are where every token goes to the experts of one rank */
    bool discrete;          /* the device's memory, which holds all but these two, is not the host's */
    ExecutorMemory unit;    /* one slot, the transient space, and what is offloaded */
    AttentionLog attention; /* who does it, on a GPU */
    bool balanced; /* activations are as if all experts had equal shares: more is taken when they have not */
} MemoryPlan;

/* Of the rank that `comm` is; NULL: one rank. On `target`, whose kernels' plans are made on the way; NULL:
 * the CPU. */
MemoryPlan memory_plan_new(const Config *, const Derived *, Comm *, const Device *target);
/* Of the device's memory, which may be the host's; of the host's beside it. */
size_t memory_plan_total(const MemoryPlan *);
size_t memory_plan_host(const MemoryPlan *);
/* Whether the host has that for `ranks` such ranks. */
Err memory_plan_check_host(const MemoryPlan *, int64_t ranks);

#endif
