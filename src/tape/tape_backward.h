/* The tape's interface for backward functions: incoming gradients, and memory for the gradients that a
 * node computes. */
#pragma once

#include "tape/tape_ops.h"

/* Returns the gradient of y, which must exist. */
Tensor *tape_grad(Tape *, Tensor *y);
/* Does the same as tape_grad for an operation that reads the gradient after the node's backward function returns. The
 * caller must free the gradient with tape_grad_drop. */
Tensor *tape_grad_keep(Tape *, Tensor *y);
void tape_grad_drop(Tape *, Tensor *grad);
/* Returns the memory for the gradient of x, or NULL if `need` excludes the gradient. The memory is new unless
 * TENSOR_ACCUM is set; if it is set, the gradient must be added to the memory's content. Parameters belong to
 * NEED_DW, and all other tensors to NEED_DX. Call this function once per use of x, then write or accumulate
 * every element exactly once, because unwritten memory (grads_mark_unwritten) has arbitrary contents. */
Tensor *tape_grad_out(Tape *, Tensor *x, Need);
/* tape_grad_sum_begin and tape_grad_sum_end are for backward functions that cannot always add to dx, the
 * gradient of x. tape_grad_sum_begin returns the tensor to write: dx or, if `apart`, scratch memory that
 * tape_grad_sum_end adds to dx. */
Tensor *tape_grad_sum_begin(Tape *, const Tensor *x, Tensor *dx, bool apart);
void tape_grad_sum_end(Tape *, Tensor *sum, Tensor *dx);
/* Passes the gradient g to x unchanged, as for y = x + ... If g is the first gradient of x, g becomes the
 * gradient of x without a copy; otherwise, g is added to the existing gradient. */
void tape_grad_share(Tape *, Tensor *x, Tensor *g, Need);
/* Like tape_grad_out, but returns the memory of x itself as the gradient's memory. No other node may read x
 * afterwards. */
Tensor *tape_grad_in_place(Tape *, Tensor *x, Need);

/* Postpones the rest of a node's backward function, which computes gradients of parameters. The rest runs in
 * tape_run_postponed, overlapped with an operation that a later backward function has started, or at the end of
 * the sweep, block or offloaded layer. Only one call can be postponed at a time: postponing a second call runs
 * the first call. `arg` is copied. */
typedef void Postponed(Tape *, void *arg);
void tape_postpone(Tape *, const Node *, Postponed *, const void *arg, size_t bytes);
void tape_run_postponed(Tape *);
