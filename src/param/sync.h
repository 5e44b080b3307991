/* Data parallelism: sums main gradients over the ranks that hold the same parameters, and gathers values that
 * ranks shard (ZeRO, param.h: DataParallel), bucket by bucket. Source: Megatron-LM
 * core/distributed/param_and_grad_buffer.py, finalize_model_grads.py; distrib_optimizer.py; distributed/fsdp.
 *
 * One rule: a main gradient is summed over param_sum_axes, in this order:
 * - over the data-parallel axes (cp and dp, for experts edp), bucket by bucket;
 * - all copies of a tied parameter;
 * - over tp (etp) for parameters that are replicated there, in one message.
 *
 * Each sum adds in the order of the group's members (comm.h), element by element. So bucket sizes, overlap,
 * and stages 0 and 1 are bitwise equal. Stages 2 and 3 sum every microbatch over the ranks and then add the
 * microbatches; the other stages do the reverse. Both orders are bitwise equal with one microbatch or with
 * exact sums (the exact lane), else equal up to rounding. The same is true of `instances`: sums inside an
 * instance, then over instances.
 *
 * All ranks of the world call the same functions in the same order. A step:
 *
 *     sync_begin(s, passes)          marks the main gradients as unwritten (param.h)
 *     forward and backward sweeps    the tape calls sync_use, sync_attention, sync_grad, sync_ready
 *     sync_finish(s)                 main gradients are sums
 *     optim_step                     norm, clip, update of the shard, sync_publish */
#pragma once

#include "comm/comm.h"
#include "param/param.h"

typedef struct Sync Sync;

/* After registry_allocate. Both arguments outlive the Sync. `comm` NULL: one rank, or a dry run on the null
 * device of the rank that the registry's mesh names. */
Sync *sync_new(Registry *, Comm *);
void sync_free(Sync *);
/* Bytes of the buffers that buckets are gathered into (stages 2 and 3). They are allocated when needed, so a
 * dry run of a step tells what the step will allocate. */
size_t sync_bytes(const Sync *);
/* comm_plan for the sums and gathers of a step. */
void sync_plan(const Sync *, Comm *);

/* Begins a step in which `passes` backward sweeps through each stage of this rank compute the gradients of its
 * parameters: one per microbatch (or part of one). */
void sync_begin(Sync *, int64_t passes);
/* Opens the channels of all sums and gathers, and adds the sums that are in progress to the main gradients, which loads
 * a kernel. All ranks call it, during a step. */
void sync_prepare(Sync *);
/* Returns when the main gradients (this rank's shard of them) are sums. */
void sync_finish(Sync *);

/* device_replay of the forward and backward sweeps of a step, from sync_begin to sync_finish, which becomes a
 * part of the graph. A graph must wait for all operations that it starts and for no others, so it also has the
 * gathers of the values that it uses. */
void sync_replay(Sync *, DeviceRecording *, void (*work)(void *arg), void *arg);

/* Call it after masters have changed, by an update, registry_init or a load. Rounds values from masters and
 * gathers the values of other ranks; with overlap_values that happens during the next uses. */
void sync_publish(Sync *);

/* ---- called by the tape ---- */

/* Call it before ops read the values of these parameters. They are available until the next sync_use. */
void sync_use(Sync *, Param *const *, int n);
/* Call it before an attention. With `with_attention`, it starts the sums and gathers that are due. */
void sync_attention(Sync *);
/* Call it before an op writes or adds to the main gradient, in a backward sweep or early in the forward. The gradient
 * has memory until sync_ready. */
void sync_grad(Sync *, Param *);
/* Whether the next gradient belongs to the sum in the current memory of the main gradient. False in stages 2 and 3 if
 * sync_grad will provide new memory. See also grad_is_unwritten. */
bool sync_is_adding(const Sync *, const Param *);
/* Call it after the last op of a stage's backward sweep that adds to it. */
void sync_ready(Sync *, Param *);

/* ---- the optimizer ---- */

/* Sums x[n], in device memory, over all ranks, in place. No-op if s is NULL or there are no other ranks. */
void sync_world_sum(Sync *, DType, void *x, int64_t n);
/* comm_launched, after the launch of a graph with such sums. */
void sync_launched(Sync *, const char *site);
