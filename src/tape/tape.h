/* A tape of coarse ops. Running an op records it; tape_backward plays the record in reverse, calling for each
 * node the hand-written backward, which is next to its forward and composed of ops.
 *
 * Memory: outputs of a recorded forward live in the slot space until tape_end; gradients and temporaries live
 * in the transient space and are given back as soon as the node that needs them is done. With both spaces on
 * the null device a run of the same code measures them (space_peak).
 *
 * Gradients: a tensor may feed several ops. The first gradient that reaches it is kept or shared (no copy);
 * later ones are added. A gradient that is shared is copied before it is written (tape_grad_out), so sharing
 * is never visible. */
#ifndef ISOTRON_TAPE_TAPE_H
#define ISOTRON_TAPE_TAPE_H

#include <math.h>

#include "base/mem.h"
#include "comm/comm.h"
#include "kernels/attr.h"
#include "param/param.h"
#include "param/sync.h"
#include "tape/offload.h"
#include "tensor/call.h"

/* What a sweep computes: gradients of activations, of parameters, or both (zero-bubble schedules sweep
 * twice). */
typedef enum Need { NEED_DX = 1, NEED_DW = 2, NEED_ALL = 3 } Need;

typedef struct Tape Tape;

/* Sees what is recorded and played back, for divergence search: an op when its outputs are ready (inside of
 * blocks too, whenever they run), and a node before and after its backward under `need`. */
typedef enum TapePoint { TAPE_RAN, TAPE_PLAYS, TAPE_PLAYED } TapePoint;
typedef void TapeProbe(void *arg, const Tape *, TapePoint, const OpDef *, const Call *, Need);

/* What every op of a run must know; plain data, owned by the caller, constant for the run. */
typedef struct RunContext {
    Device *device;
    DType dtype;          /* storage of activations: F64, F32, BF16 or F16 */
    bool batch_invariant; /* --batch-invariant-mode: what a sample gives does not depend on the others */
    uint64_t seed;
    const Layout *layout; /* NULL: one rank */
    Comm *comm;           /* NULL if the layout is one rank */
    Sync *sync;           /* told which parameters ops use and which gradients are complete; NULL: nobody */
    TapeProbe *probe;     /* NULL: none */
    void *probe_arg;
    bool exact; /* the exact lane: what an op gives is rounded to a grid, see tape_grid */
} RunContext;

/* What the ops of an open tape must know of the microbatch that they compute. */
typedef struct MicrobatchContext {
    bool recording;       /* the tape can be played back; else blocks (tape_block) keep only their output */
    bool training;        /* dropout is active */
    int64_t first_sample; /* index in the whole run of the first sample */
    double aux_scale;     /* the gradient of the step's loss with respect to an auxiliary loss */
} MicrobatchContext;

/* The exact lane rounds every value that is not a partial sum to multiples of 2^-20, so that a sum of
 * products is exact (below 2^13 in magnitude) however it is cut, and what is not a sum differs only where
 * rounding noise of 2^-53 crosses the middle between two grid points: any layout gives the same bits. */
enum { EXACT_GRID_BITS = 20 };
static inline double exact_on_grid(double x) {
    return ldexp(rint(ldexp(x, EXACT_GRID_BITS)), -EXACT_GRID_BITS);
}

typedef struct Node Node;
typedef void NodeBackward(Tape *, const Node *, Need);

struct Node {
    const OpDef *op;        /* NULL for a recompute node, and a mark */
    Call call;              /* operands of the forward, none of a mark; attr is the tape's copy */
    NodeBackward *backward; /* NULL: nothing flows back through this op */
    bool ahead;             /* gradients of parameters were there before it was recorded */
};

Tape *tape_new(const RunContext *, Space *slot, Space *transient);
void tape_free(Tape *);
const RunContext *tape_context(const Tape *);
/* Opens the tape for one forward; everything recorded or allocated before is forgotten. The context is
 * copied. */
void tape_begin(Tape *, const MicrobatchContext *);
const MicrobatchContext *tape_microbatch(const Tape *);
/* Forgets everything; O(1) in the number of tensors. */
void tape_end(Tape *);
/* Zeroed host memory that lives until tape_end: what a block (tape_block) must find again in its backward. */
void *tape_alloc(Tape *, size_t bytes);

/* ---- for the builders of ops (src/ops) ---- */

/* A fresh tensor that lives as long as the forward in progress (or, inside a backward, as long as its node). */
Tensor *tape_tensor(Tape *, DType, int ndim, const int64_t *dim);
/* A view of `base` at `offset` elements. Its gradient is the same view of base's gradient. All views of a
 * tensor together cover it, and the tensor itself feeds no op. */
Tensor *tape_view(Tape *, Tensor *base, int64_t offset, int ndim, const int64_t *dim, const int64_t *stride);
/* The same bytes under another header, with a gradient of its own. */
Tensor *tape_alias(Tape *, const Tensor *x);
/* Runs an op and records it; outputs need a gradient if any input does, and get the type that the op's rule
 * gives them (a fault names op and axis if it gives none). attr (NULL or attr_size bytes) is copied. */
void tape_run(Tape *, const OpDef *, Call, size_t attr_size, NodeBackward *);

/* Gives the outputs their types, as tape_run does. */
void tape_check(Tape *, const OpDef *, const Call *);
/* Records what the builder has run itself, by way of tape_call and tape_comm: an op with communication. The
 * type of its outputs is the builder's to set before. */
void tape_record(Tape *, const OpDef *, Call, size_t attr_size, NodeBackward *);
/* For an op that adds to the main gradients of its parameters before it is recorded: tape_early_grads_begin
 * comes before it adds, tape_early_grads_end in the place of tape_record. */
void tape_early_grads_begin(Tape *, const OpDef *, const Call *);
void tape_early_grads_end(Tape *, const OpDef *, Call, size_t attr_size, NodeBackward *);
/* Whether what runs now is played back: exactly once for each op of a training microbatch, although a block
 * runs again; never in an evaluation. What counts or adds up outside the tape asks. */
bool tape_is_recording(const Tape *);
/* Whether what runs now is part of a backward: a block that runs again. */
bool tape_in_backward(const Tape *);
/* Gives the output y the gradient dy (each element) from the start: an auxiliary loss, which no other op
 * reads. Nothing to do unless the tape records. */
void tape_seed(Tape *, Tensor *y, double dy);
/* Ranks along an axis, and the group of this rank along the axes of a mask. */
int tape_axis(const Tape *, Axis);
Group tape_group(const Tape *, unsigned mask);
/* Which positions of a sequence of *total the rows of x [s,b,...] are: cut over CP in zigzag order
 * (base/zigzag.h), and over TP if x is V there. */
SequenceSlice tape_slice(const Tape *, const Tensor *x, int64_t *total);
/* Exact lane: x, if an op writes it after this call, and its gradient stay off the grid. Ranks may hold
 * summands, which they add only later, so no rank may round them before. */
void tape_grad_off_grid(Tensor *x);
bool tape_grad_is_off_grid(const Tensor *x);
/* Memory for the length of one builder or backward: given back by tape_drop. */
Tensor *tape_scratch(Tape *, DType, int ndim, const int64_t *dim);
void tape_drop(Tape *, Tensor *);
/* Nothing to do if x is `kept` itself: what a step that may be needless has made of it. */
static inline void tape_drop_unless(Tape *t, Tensor *x, const Tensor *kept) {
    if (x != kept) tape_drop(t, x);
}
/* A collective, under the name of `op` in traces and reports; fills in comm call's buffers, type and, unless
 * it is given, n (the elements of `in`, for COMM_REDUCE_SCATTER of `out`). start and finish let work run
 * between; nothing happens on the null device. */
void tape_comm(Tape *, const OpDef *op, CommCall, Tensor *in, Tensor *out);
typedef struct TapeComm {
    const OpDef *op;
    Tensor *in, *out;
    CommWork *work; /* NULL on the null device */
} TapeComm;
TapeComm tape_comm_start(Tape *, const OpDef *op, CommCall, Tensor *in, Tensor *out);
void tape_comm_finish(Tape *, TapeComm);

/* ---- for backward functions ---- */

/* Runs an op, records nothing. */
void tape_call(Tape *, const OpDef *, Call);
/* The gradient that has arrived at y. */
Tensor *tape_grad(Tape *, Tensor *y);
/* Where to write the gradient of x, NULL if nobody wants it under `need`: fresh memory, or, with TENSOR_ACCUM
 * set, memory to add to. Parameters are NEED_DW, all else NEED_DX. Call it once per use of x, and write or
 * add exactly once: all of it, for what was there before (grads_mark_unwritten) may be anything. */
Tensor *tape_grad_out(Tape *, Tensor *x, Need);
/* For a backward that cannot add to the gradient dx of x, or not in this case (`apart`): the tensor to write,
 * which is dx, or else scratch memory that the end adds to dx. */
Tensor *tape_grad_sum_begin(Tape *, const Tensor *x, Tensor *dx, bool apart);
void tape_grad_sum_end(Tape *, Tensor *sum, Tensor *dx);
/* Gives x the gradient g as it is (y = x + ...): shared if it is the first, else added. */
void tape_grad_share(Tape *, Tensor *x, Tensor *g, Need);
/* As tape_grad_out, in x's own memory: for an x that no other node reads again. */
Tensor *tape_grad_in_place(Tape *, Tensor *x, Need);

/* ---- for models and the training step ---- */

/* A tensor that comes from outside and wants a gradient: what another pipeline stage sent. After
 * tape_backward its gradient is tape_grad. */
Tensor *tape_input(Tape *, DType, int ndim, const int64_t *dim, SpmdType);

/* Runs fn(tape, self, x) and keeps only its output and x; a backward runs fn again. The one recompute
 * mechanism. When not recording, fn's intermediates are dropped the same way. */
typedef Tensor *BlockFn(Tape *, void *self, Tensor *x);
Tensor *tape_block(Tape *, BlockFn *, void *self, Tensor *x);
/* Where the tape keeps the activations of layers that are marked as follows; the caller's, NULL: with all
 * others. */
void tape_offload_to(Tape *, Offload *);
/* Around each of the Offload's layers, which follow each other. What a layer computes the next may read in
 * its forward; else only what is within may, and it is played back by one sweep for all. */
void tape_offload_begin(Tape *, int64_t layer);
void tape_offload_end(Tape *, int64_t layer);
/* Gives the output y its gradient dy (same shape), before the tape is played back. */
void tape_give(Tape *, Tensor *y, Tensor *dy);
/* Plays the tape back. After a DX sweep a DW sweep takes the gradients that were given. */
void tape_play(Tape *, Need);
/* Both, for one output; dy NULL: given already. */
static inline void tape_backward(Tape *t, Tensor *y, Tensor *dy, Need need) {
    if (dy) tape_give(t, y, dy);
    tape_play(t, need);
}

/* Called after every op that runs, forward and backward: trace points and divergence search. */
typedef void TapeTrace(void *arg, const OpDef *, const Call *);
void tape_trace(Tape *, TapeTrace *, void *arg);

#endif
