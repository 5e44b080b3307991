/* The part of the tape's interface that src/ops uses. */
#pragma once

#include "kernels/attr.h"
#include "tape/tape.h"

typedef struct Node Node;
typedef void NodeBackward(Tape *, const Node *, Need);

struct Node {
    const OpDef *op; /* NULL for a recompute node, and for a mark (of a layer, a block or a pause) */
    /* the operands of the forward function; a mark has none; attr points to the tape's copy of the
     * attributes */
    Call call;
    NodeBackward *backward; /* NULL if no gradient flows back through this op */
    /* the gradients of the op's parameters were computed before the op was recorded (tape_early_grads_begin) */
    bool ahead;
};

/* Returns a view of `base` that starts at element `offset`. The view's gradient is the same view of the
 * gradient of `base`. Together, all views of a tensor must cover the tensor, and no op may read the tensor
 * itself. */
Tensor *tape_view(Tape *, Tensor *base, int64_t offset, int ndim, const int64_t *dim, const int64_t *stride);
/* Returns a second Tensor for the data of x, with a separate gradient. */
Tensor *tape_alias(Tape *, const Tensor *x);
/* Returns a second Tensor for the data of x, which may be a parameter. No gradient flows through the second
 * Tensor. */
Tensor *tape_detach(Tape *, const Tensor *x);
/* Runs an op without recording it. */
void tape_call(Tape *, const OpDef *, Call);
/* Runs an op and records it. Outputs need a gradient if any input needs one. The op's rule determines the types
 * of the outputs. Operand types that the rule does not allow are a fault; the message names the op and the axis. attr
 * (NULL or attr_size bytes) is copied. */
void tape_run(Tape *, const OpDef *, Call, size_t attr_size, NodeBackward *);

/* Sets the types of the outputs, as tape_run does. */
void tape_check(Tape *, const OpDef *, const Call *);
/* Records a communicating op that the builder has already run, through tape_call and tape_comm. The builder
 * must have set the types of the op's outputs. */
void tape_record(Tape *, const OpDef *, Call, size_t attr_size, NodeBackward *);
/* If an op adds to the main gradients of its parameters before it is recorded, the builder calls tape_early_grads_begin
 * before the addition, and tape_early_grads_end instead of tape_record. */
void tape_early_grads_begin(Tape *, const OpDef *, const Call *);
void tape_early_grads_end(Tape *, const OpDef *, Call, size_t attr_size, NodeBackward *);
/* Returns whether the op that is running belongs to a block that the backward pass is recomputing. */
bool tape_in_backward(const Tape *);
/* Marks x because ranks may hold partial sums of x or of its gradient; partial sums must not be rounded before they are
 * added. The exact lane does not round the gradient of a marked x to the grid, and does not round x itself if
 * an op writes x later. */
void tape_grad_off_grid(Tensor *x);
bool tape_grad_is_off_grid(const Tensor *x);
/* Returns memory for use within one call to a builder or a backward function. tape_drop frees the memory. */
Tensor *tape_scratch(Tape *, DType, int ndim, const int64_t *dim);
void tape_drop(Tape *, Tensor *);
/* Frees x unless it is `kept`. Use this function after a call that may have returned its input unchanged. */
static inline void tape_drop_unless(Tape *t, Tensor *x, const Tensor *kept) {
    if (x != kept) tape_drop(t, x);
}
/* Starts a collective. Traces and reports list the collective under the name of `op`. Sets the buffers and the
 * type of the CommCall. If n is 0, n becomes the number of elements in `in`, or in `out` for
 * COMM_REDUCE_SCATTER. Other work may run between start and finish, but neither buffer may be freed. On the
 * null device, communication functions do nothing. */
void tape_comm(Tape *, const OpDef *op, CommCall, Tensor *in, Tensor *out);
typedef struct TapeComm {
    const OpDef *op;
    Tensor *in, *out;
    CommWork *work; /* NULL on the null device, or if the operation is complete */
    bool at_once;
} TapeComm;
TapeComm tape_comm_start(Tape *, const OpDef *op, CommCall, Tensor *in, Tensor *out);
void tape_comm_finish(Tape *, TapeComm);
/* Waits for the operation if it must not overlap with others. For collectives, tape_comm_start calls
 * tape_comm_at_once. For point-to-point messages, the caller of tape_comm_start must call tape_comm_at_once,
 * after starting all messages that depend on each other. */
void tape_comm_at_once(Tape *, TapeComm *);
/* Sets every element of the gradient of y to dy before the backward pass. tape_seed is used for an auxiliary
 * loss, which no other op reads, and does nothing unless the tape is recording. */
void tape_seed(Tape *, Tensor *y, double dy);
/* Returns whether operations along the axis may overlap with others. */
bool tape_overlaps(const Tape *, Axis);
