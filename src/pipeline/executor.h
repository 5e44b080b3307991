/* Plays a rank's schedule (schedule.h): runs the passes on one tape a slot, and moves activations and their
 * gradients between the stages. A message is received where it is needed and sent as soon as it is there,
 * without waiting. One rank without a pipeline is a schedule of one stage. */
#ifndef ISOTRON_PIPELINE_EXECUTOR_H
#define ISOTRON_PIPELINE_EXECUTOR_H

#include "models/gpt.h"
#include "pipeline/schedule.h"
#include "tape/tape.h"

/* What the passes compute; x_sbh and the result as gpt_stage has them. */
typedef struct ExecutorCalls {
    /* Before every pass: sets what the run's context says of its microbatch. */
    void (*begin)(void *arg, const Action *);
    Tensor *(*forward)(void *arg, Tape *, const Action *, Tensor *x_sbh);
    /* The gradient of what the head gave. */
    Tensor *(*loss_gradient)(void *arg, Tape *, const Action *, Tensor *loss_bs);
    void *arg;
} ExecutorCalls;

/* Bytes of one slot's activations, of the transient space(s), and of what is offloaded; 0: unplanned. */
typedef struct ExecutorMemory {
    size_t slot, transient;
    OffloadMemory offload;
} ExecutorMemory;

typedef struct Executor Executor;

/* The context, the model and the calls outlive the executor. Samples is what a pass runs at once. */
Executor *executor_new(const RunContext *, const Gpt *, int64_t samples, ExecutorMemory, ExecutorCalls);
void executor_free(Executor *);
/* Plays all passes; takes more slots first if there are too few. `spec` is the one of the schedule. */
void executor_run(Executor *, const PipelineSpec *, const RankSchedule *);
/* The highest use of any slot and transient space so far. */
ExecutorMemory executor_peak(const Executor *);
/* Bytes of device memory of all slots, transient spaces and message buffers that a schedule takes at these
 * sizes. */
size_t executor_bytes(const Executor *, const RankSchedule *, bool zero_bubble, ExecutorMemory);
/* Calls trace after every op of every tape (tape_trace). */
void executor_trace(Executor *, TapeTrace *, void *arg);

#endif
