/* Data parallelism: sums main gradients over the ranks that hold the same parameters, and gathers values that
 * ranks share out (ZeRO, param.h: DataParallel). Works bucket by bucket: Megatron-LM
 * core/distributed/param_and_grad_buffer.py, finalize_model_grads.py; distrib_optimizer.py; distributed/fsdp.
 *
 * One rule: a main gradient is summed over param_sum_axes. First over the data-parallel axes (cp and dp, of
 * experts edp), bucket by bucket; then the gradients of both copies of tied embeddings are added; then what
 * is replicated over tp (etp) is summed there, in one message. Each sum adds in the order of the group's
 * members (comm.h), element by element, so that bucket sizes, overlap and stages 0 and 1 give the same bits.
 * Stages 2 and 3 sum every microbatch over the ranks and then add the microbatches, the others the other way
 * round: the same bits if there is one microbatch or if sums are exact (the exact lane), else equal up to
 * rounding. So with `instances`: sums inside an instance, then over instances.
 *
 * All ranks of the world call the same functions in the same order. A step:
 *
 *     sync_begin(s, passes)          zeroes the main gradients
 *     forward and backward sweeps    the tape calls sync_use, sync_grad, sync_ready (RunContext.sync)
 *     sync_finish(s)                 main gradients are sums
 *     optim_step                     norm, clip, update of the shard, sync_publish */
#ifndef ISOTRON_PARAM_SYNC_H
#define ISOTRON_PARAM_SYNC_H

#include "comm/comm.h"
#include "param/param.h"

typedef struct Sync Sync;

/* After registry_allocate; both outlive it. `comm` NULL: one rank, or a dry run on the null device of the
 * rank that the registry's mesh names. */
Sync *sync_new(Registry *, Comm *);
void sync_free(Sync *);
/* Of the buffers that buckets are gathered into (stages 2 and 3); taken as they are needed, so that after a
 * dry run of a step it is what the step takes. */
size_t sync_bytes(const Sync *);

/* Begins a step in which every parameter will be in `passes` backward sweeps that compute its gradient: the
 * microbatches (or the parts that these are cut into). */
void sync_begin(Sync *, int64_t passes);
/* Returns when the main gradients (this rank's shard of them) are sums. */
void sync_finish(Sync *);

/* After masters have changed, by an update, registry_init or a load: rounds values from them and gathers what
 * other ranks hold; with overlap_values that is done behind the next uses. */
void sync_publish(Sync *);

/* ---- called by the tape ---- */

/* Before ops read the values of these parameters: they are there until the next sync_use. */
void sync_use(Sync *, Param *const *, int n);
/* Before an op adds to the main gradient, in a backward sweep or ahead of its own in the forward: it has
 * memory until sync_ready. */
void sync_grad(Sync *, Param *);
/* After the last op of a backward sweep that adds to it. */
void sync_ready(Sync *, Param *);

/* ---- sums over the world ---- */

/* x[n] summed over all ranks in place. NULL, or no ranks: nothing to do. */
void sync_world_sum(Sync *, DType, void *x, int64_t n);

#endif
