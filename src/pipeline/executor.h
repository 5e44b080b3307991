/* Runs a rank's schedule (schedule.h): the passes, with one tape per slot, and the messages that carry activations and
 * their gradients between stages. Messages have separate buffers: a stage reads its input and its output's gradient
 * from receive buffers, and writes its output to a send buffer. Without a pipeline, the schedule has one stage.
 *
 * With --interleaved-microbatches, an action of the schedule runs several microbatches (a unit) interleaved: while one
 * microbatch waits for an operation between ranks, the next microbatch computes. With --interleave-forward-backward,
 * two actions run interleaved: a backward pass and a forward pass, if possible. Results with and without interleaving
 * are bitwise equal. Similar methods are DeepSpeed-Domino (Wang et al., 2024, arXiv 2409.15241) for tensor parallelism,
 * and Megatron-LM's --overlap-moe-expert-parallel-comm for experts. */
#pragma once

#include "models/microbatch.h"
#include "models/model.h"
#include "pipeline/schedule.h"
#include "tape/tape.h"

/* The sizes in bytes of one microbatch's activations, transient space and offloaded activations. The sizes are 0 if
 * there is no plan. */
typedef struct ExecutorMemory {
    size_t slot, transient;
    OffloadMemory offload, module[OFFLOAD_MODULES];
} ExecutorMemory;

/* Returns the number of bytes of host memory for offloaded activations. */
size_t executor_host_bytes(const ExecutorMemory *);

typedef struct Executor Executor;

/* The context and the model must outlive the executor. Every microbatch has `samples` samples. `interleaved` is
 * the number of passes that are interleaved. `unit` is the number of microbatches per action: `interleaved` or
 * 1. */
Executor *executor_new(const RunContext *, const Model *, int64_t samples, int64_t interleaved, int64_t unit,
                       ExecutorMemory);
void executor_free(Executor *);
/* Adds slots and buffers if the schedule needs more. The schedule must have been created from the spec. */
void executor_provide(Executor *, const PipelineSpec *, const RankSchedule *);
/* Calls comm_plan for the messages. */
void executor_plan(const Executor *, Comm *);
/* Returns whether executor_run with n microbatches will launch kernels for the first time. A kernel is loaded at its
 * first launch. Loading may wait until the GPU, or every GPU of the process, is idle. A GPU on which NCCL waits for a
 * message from this rank would never be idle. If a run loads kernels, its messages therefore pass through host memory,
 * which is slow. At the end of such a run, all ranks prepare everything that the rest of a step may allocate or load,
 * and synchronize. */
bool executor_loads(const Executor *, const PipelineSpec *, int64_t n);
/* Calls executor_provide, and runs the schedule on n microbatches. The schedule must have been created from
 * the spec. The model's heads add each loss's weighted sum to loss_sum (for each loss, an F64 [1], or NULL if
 * not needed). */
void executor_run(Executor *, const PipelineSpec *, const RankSchedule *, const Microbatch *, int64_t n,
                  Tensor *loss_sum);
/* Returns the peak memory use of any slot and any transient space. */
ExecutorMemory executor_peak(const Executor *);
/* For the given sizes, returns the number of bytes of device memory that a schedule needs for all slots, transient
 * spaces and message buffers. */
size_t executor_bytes(const Executor *, const RankSchedule *, bool zero_bubble, ExecutorMemory);
/* Returns a number that changes whenever memory is reallocated. After a reallocation, a CUDA graph with the
 * old addresses is invalid. */
int64_t executor_allocations(const Executor *);
/* Calls the trace function after every op of every tape (tape_trace). */
void executor_trace(Executor *, TapeTrace *, void *arg);
