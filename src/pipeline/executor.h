/* Plays a rank's schedule (schedule.h): runs the passes on one tape a slot, and moves activations and their
 * gradients between the stages. A message is received where it is needed and sent as soon as it is there,
 * without waiting. One rank without a pipeline is a schedule of one stage. */
#ifndef ISOTRON_PIPELINE_EXECUTOR_H
#define ISOTRON_PIPELINE_EXECUTOR_H

#include "models/model.h"
#include "models/microbatch.h"
#include "pipeline/schedule.h"
#include "tape/tape.h"

/* Bytes of one slot's activations, of the transient space(s), and of what is offloaded; 0: unplanned. */
typedef struct ExecutorMemory {
    size_t slot, transient;
    OffloadMemory offload;
} ExecutorMemory;

typedef struct Executor Executor;

/* The context and the model outlive the executor. Every microbatch has so many samples. */
Executor *executor_new(const RunContext *, const Model *, int64_t samples, ExecutorMemory);
void executor_free(Executor *);
/* Runs the schedule, which `spec` has made, on microbatches by their numbers; takes more slots first if there
 * are too few. The head adds the sum of loss * mask to loss_sum (F64 [1]; NULL: nobody wants it). */
void executor_run(Executor *, const PipelineSpec *, const RankSchedule *, const Microbatch *,
                  Tensor *loss_sum);
/* The highest use of any slot and transient space so far. */
ExecutorMemory executor_peak(const Executor *);
/* Bytes of device memory of all slots, transient spaces and message buffers that a schedule takes at these
 * sizes. */
size_t executor_bytes(const Executor *, const RankSchedule *, bool zero_bubble, ExecutorMemory);
/* Calls trace after every op of every tape (tape_trace). */
void executor_trace(Executor *, TapeTrace *, void *arg);

#endif
