/* State that a module keeps between passes and steps in addition to its parameters: FP8 scales and weights, expert
 * biases, and counters. A module's constructor registers each state once. Code that allocates states, zeroes counters
 * or handles a step's events loops over all registered states. */
#pragma once

#include "comm/comm.h"
#include "param/param.h"

/* A buffer that is not trained, but is saved in and loaded from checkpoints like a parameter. All ranks in a stage hold
 * the entire buffer; its values are in `master`. The initial values are zeros. */
Param *state_buffer(Registry *, const char *name, int ndim, const int64_t *dim);

/* Registers n counters, and returns them as F64 [n]. A pass adds to a counter (COMM_SUM), or replaces the
 * counter if a value is larger (COMM_MAX). Counters are zeroed when a step begins. All of a model's counters
 * with the same reduction form one block, so that one all-reduce combines the counters of all ranks. Every rank
 * must register the same counters in the same order, including the counters of layers on other ranks. The
 * returned address is stable. states_allocate sets the tensor's data. */
Tensor *state_counters(Registry *, CommReduction, int64_t n);

/* The context in which an event happens. */
typedef struct StateContext {
    Device *device;
    const Layout *layout; /* `layout` and `comm` are NULL if there is only one rank */
    Comm *comm;
    int64_t tokens; /* for `prepare`: number of tokens in one pass on this rank */
    bool training;  /* for `refresh`: whether the next passes are a training step, not an evaluation */
} StateContext;

/* The handlers for a module's state. Each handler may be NULL. */
typedef struct StateKind {
    /* allocates device memory, and returns the size in bytes */
    size_t (*allocate)(void *self, const Registry *, int64_t positions);
    /* allocates device memory for a run's steps, and returns the size in bytes */
    size_t (*prepare)(void *self, const StateContext *);
    void (*refresh)(void *self, const StateContext *); /* called after parameters have changed */
    /* called after the last pass of a training step, before the update */
    void (*end_step)(void *self, const StateContext *);
    /* called after the update of this rank's masters, before other ranks gather them */
    void (*after_update)(void *self, Registry *);
    void (*release)(void *self, Device *); /* frees the memory */
} StateKind;

/* Registers a state. Both arguments must outlive the registry. */
void state_add(Registry *, const StateKind *, void *self);
/* Returns the i-th state of the given kind in registration order, or NULL if there are at most i such
 * states. */
void *state_find(const Registry *, const StateKind *, int i);

/* Allocates the counters and all states' memory. Call this function after registry_allocate. `positions` is the maximum
 * sequence length. */
void states_allocate(Registry *, int64_t positions);
void states_free(Registry *); /* call this function before registry_free */
/* Returns F64 [number of counters]. The tensor's ndim is 0 if there are no counters. */
const Tensor *states_counters(const Registry *, CommReduction);
size_t states_bytes(const Registry *); /* returns the total size of the states' device memory in bytes */

void states_prepare(Registry *, const StateContext *);
void states_begin_step(Registry *); /* zeroes the counters */
void states_refresh(Registry *, const StateContext *);
void states_end_step(Registry *, const StateContext *);
void states_after_update(Registry *);
