/* Collectives that change a tensor's SPMD type along one mesh axis (tensor/spmd.h). The two types determine the forward
 * and backward passes:
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

/* How data moves. */
typedef enum ReshardKind {
    MOVE_NOTHING,
    MOVE_REDUCE,
    MOVE_GATHER,
    MOVE_REDUCE_SCATTER,
    MOVE_SLICE,
    MOVE_PAD
} ReshardKind;

/* Converts x to type `to` along the axis. V shards dimension `dim` into equal parts, in rank order. Returns x itself if
 * the axis has size 1. A conversion that is not in the table is a fault. */
Tensor *op_redistribute(Tape *, Tensor *x, Axis, Spmd to, int dim);

/* Returns columns [first, first + heads*d) of x [s,b,w] as [s,b,1,heads,d]. x is R over the axis. `first` may
 * differ between ranks. The gradient of the other columns is zero. `to` is V if no two ranks share columns, and
 * R if they may share columns. If `to` is R, each rank holds a summand of the gradient. */
Tensor *op_take_heads(Tape *, Tensor *x, Axis, int64_t first, int64_t heads, int64_t d, Spmd to);

/* For ops that communicate, moves `in` to `out`. The caller must have created `out` with the correct SPMD type
 * and shape: the move multiplies or divides the size of dimension `dim` by the number of ranks. `in` and `out`
 * must be contiguous. redistribute_start returns immediately. After redistribute_finish, `out` may be read and
 * `in` may be overwritten. */
typedef struct PendingReshard {
    TapeComm comm;
    /* packed: if an inner dimension is sharded, a copy sorted by rank; otherwise NULL */
    Tensor *packed, *out;
    ReshardKind move;
    int dim, ranks;
} PendingReshard;
PendingReshard redistribute_start(Tape *, Tensor *in, Tensor *out, Axis, ReshardKind, int dim);
void redistribute_finish(Tape *, PendingReshard);
/* Calls redistribute_start, then redistribute_finish. */
void redistribute_run(Tape *, Tensor *in, Tensor *out, Axis, ReshardKind, int dim);
/* Moves g and adds it to the gradient of x. A call to redistribute_grad must be the last step in a backward
 * function. */
void redistribute_grad(Tape *, Tensor *x, Tensor *g, Axis, ReshardKind, int dim, Need);
