/* Data parallelism: sums main gradients over the ranks that hold the same parameters, and gathers the values that
 * these ranks shard (ZeRO, see DataParallel in param.h), bucket by bucket. Source: Megatron-LM
 * core/distributed/param_and_grad_buffer.py, finalize_model_grads.py; distrib_optimizer.py; distributed/fsdp.
 *
 * A main gradient is summed over param_sum_axes, in this order:
 * - over the data-parallel axes (cp and dp; edp for experts), bucket by bucket;
 * - over all copies of a tied parameter;
 * - over tp (etp for experts), in one message, for parameters that are replicated across this axis.
 *
 * Each sum adds in the order of the group's members (comm.h), element by element. Results are therefore bitwise
 * equal for all bucket sizes, with and without overlap, and for stages 0 and 1. Stages 2 and 3 sum each
 * microbatch's gradients over the ranks, then add the microbatches. Stages 0 and 1 add the microbatches first.
 * The two orders give bitwise equal results with one microbatch or with exact sums (the exact lane). Otherwise,
 * the results differ by rounding. The results also differ by rounding with several `instances`, because
 * gradients are summed inside each instance first, and then over instances.
 *
 * All ranks in the world must call the same functions in the same order. A step consists of these calls:
 *
 *     `sync_begin(s, passes)`        marks the main gradients as unwritten (param.h).
 *     Forward and backward sweeps    run on the tape, which calls sync_use, sync_attention, sync_grad and sync_ready.
 *     `sync_finish(s)`               completes the sums, so that main gradients are sums over ranks.
 *     `optim_step`                   computes the norm, clips, updates the shard, and calls sync_publish. */
#pragma once

#include "comm/comm.h"
#include "param/param.h"

typedef struct Sync Sync;

/* Call this function after registry_allocate. Both arguments must outlive the Sync. The Comm is NULL if there
 * is only one rank, and in a dry run, in which the null device simulates one rank of the registry's mesh. */
Sync *sync_new(Registry *, Comm *);
void sync_free(Sync *);
/* Returns the size in bytes of the buffers into which buckets are gathered (stages 2 and 3). Buffers are
 * allocated on demand: after a dry run of a step, the result is the size that the step will allocate. */
size_t sync_bytes(const Sync *);
/* Calls comm_plan for a step's sums and gathers. */
void sync_plan(const Sync *, Comm *);

/* Begins a step in which `passes` backward sweeps through each of this rank's stages compute the gradients. There is
 * one sweep for each microbatch or part of a microbatch. */
void sync_begin(Sync *, int64_t passes);
/* Opens the channels for all sums and gathers. Also adds the sums in progress to the main gradients, to load
 * the kernel that performs such additions. All ranks must call this function during a step. */
void sync_prepare(Sync *);
/* Completes the sums for this rank's shard of the main gradients. */
void sync_finish(Sync *);

/* Calls device_replay with `work`, the forward and backward sweeps between sync_begin and sync_finish. The
 * graph also includes sync_finish. A graph must wait for exactly the operations that it starts, so it also
 * gathers the values that its ops read. */
void sync_replay(Sync *, DeviceRecording *, void (*work)(void *arg), void *arg);

/* Call this function after an update, registry_init or a load has changed masters. Rounds values from masters, casts
 * FP8 weights, and gathers other ranks' values. With overlap_values, the gathers overlap the next forward pass. */
void sync_publish(Sync *);

/* ---- called by the tape ---- */

/* Call this function before ops read the values of the given parameters. The values are available until the
 * next sync_use. */
void sync_use(Sync *, Param *const *, int n);
/* Call this function before an attention op. If `with_attention` is set, the call starts the sums and gathers
 * that are due. */
void sync_attention(Sync *);
/* Call this function before an op writes or adds to the main gradient, in a backward sweep or early in the forward
 * pass. The gradient has memory until sync_ready. */
void sync_grad(Sync *, Param *);
/* Returns whether the next gradient is added to the sum in the main gradient's current memory. At stages 2 and
 * 3, the result is false if sync_grad will provide new memory. See also grad_is_unwritten. */
bool sync_is_adding(const Sync *, const Param *);
/* Call this function after the last op of a stage's backward sweep that adds to the main gradient. */
void sync_ready(Sync *, Param *);

/* ---- the optimizer ---- */

/* Sums x[n] (in device memory) over all ranks in place. Does nothing if s is NULL or there are no other ranks. */
void sync_world_sum(Sync *, DType, void *x, int64_t n);
/* Collectives on device memory over the tensor-parallel ranks that hold a parameter's shards. sync_sum_shards
 * sums x[n] in place, and sync_gather_shards concatenates the in[n] of all ranks. */
void sync_sum_shards(Sync *, const Param *, DType, void *x, int64_t n);
void sync_gather_shards(Sync *, const Param *, DType, const void *in, void *out, int64_t n);
/* Calls comm_launched. Call this function after launching a graph that contains sync_world_sum. */
void sync_launched(Sync *, const char *site);
