/* Collectives that change what a tensor is along one axis of the mesh (tensor/spmd.h). Source and destination
 * determine both directions:
 *
 *   from to   forward          backward         Megatron-LM core/tensor_parallel/mappings.py
 *   I    R    -                all-reduce       copy_to_tensor_model_parallel_region
 *   P    I    all-reduce       -                reduce_from_tensor_model_parallel_region
 *   P    R    all-reduce       all-reduce
 *   V    R    all-gather       reduce-scatter   gather_from_sequence_parallel_region
 *   P    V    reduce-scatter   all-gather       reduce_scatter_to_sequence_parallel_region
 *   V    I    all-gather       slice            gather_from_tensor_model_parallel_region
 *   I    V    slice            all-gather       scatter_to_sequence_parallel_region
 *   R    V    slice            pad with zeros */
#pragma once

#include "tape/tape.h"
#include "tape/tape_ops.h"

/* The data movement. */
typedef enum ReshardKind {
    MOVE_NOTHING,
    MOVE_REDUCE,
    MOVE_GATHER,
    MOVE_REDUCE_SCATTER,
    MOVE_SLICE,
    MOVE_PAD
} ReshardKind;

/* x converted to type `to` along the axis. V shards dimension `dim` into equal parts, in the order of the
 * ranks. Returns x itself if the axis has size 1. A pair that is not in the table is a fault. */
Tensor *op_redistribute(Tape *, Tensor *x, Axis, Spmd to, int dim);

/* Columns [first, first + heads*d) of x [s,b,w], R over the axis, as [s,b,1,heads,d]; `first` differs by rank.
 * Backward: zeros elsewhere. `to` V: no two ranks share columns; R: ranks may share columns, and each rank has a
 * summand of the gradient. */
Tensor *op_take_heads(Tape *, Tensor *x, Axis, int64_t first, int64_t heads, int64_t d, Spmd to);

/* For builders that communicate inside an op: moves `in` into `out`. The movement implies the shape of `out` (`dim` is
 * multiplied or divided by the number of ranks); the builder has set its type. start returns immediately. After finish
 * the result may be read and `in` may be overwritten. Both are contiguous. */
typedef struct PendingReshard {
    TapeComm comm;
    Tensor *packed, *out; /* packed: member-major copy for a shard of an inner dimension; NULL: none */
    ReshardKind move;
    int dim, ranks;
} PendingReshard;
PendingReshard redistribute_start(Tape *, Tensor *in, Tensor *out, Axis, ReshardKind, int dim);
void redistribute_finish(Tape *, PendingReshard);
/* redistribute_start and redistribute_finish. */
void redistribute_run(Tape *, Tensor *in, Tensor *out, Axis, ReshardKind, int dim);
/* Moves g and adds it to the gradient of x: the last step of a backward function. */
void redistribute_grad(Tape *, Tensor *x, Tensor *g, Axis, ReshardKind, int dim, Need);
