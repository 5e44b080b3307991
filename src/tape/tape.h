/* The tape records coarse-grained ops. Running an op on the tape records the op. tape_backward visits the
 * records in reverse order and calls each op's hand-written backward function, which is itself composed of
 * ops. The source of a backward function is next to the source of its forward function.
 *
 * Memory: outputs of a recorded forward pass are in the slot space until tape_end. Gradients and temporaries are in the
 * transient space, and are freed as soon as the nodes that need them have run. A run of the same code on the null
 * device measures the sizes of both spaces (space_peak).
 *
 * Gradients: if several ops read the same tensor, it receives several gradients. The first is kept or shared
 * without a copy, and later ones are added to it. A shared gradient is copied before it is written
 * (tape_grad_out), so sharing has no visible effect. */
#pragma once

#include <math.h>

#include "base/fiber.h"
#include "base/mem.h"
#include "comm/comm.h"
#include "kernels/attr.h"
#include "param/param.h"
#include "param/sync.h"
#include "tape/offload.h"
#include "tensor/call.h"

/* The gradients that a sweep computes: for activations, for parameters, or for both. Zero-bubble schedules sweep
 * twice. */
typedef enum Need { NEED_DX = 1, NEED_DW = 2, NEED_ALL = 3 } Need;

typedef struct Tape Tape;

/* An observer of the tape, used to search for a divergence. An observed tape waits for each communication
 * before it continues. The observer is called for an op when the op's outputs are ready; for an op inside a block, this
 * happens each time the block runs. The observer is also called before and after each node's backward function, with
 * the Need of the sweep. */
typedef enum TapePoint { TAPE_RAN, TAPE_PLAYS, TAPE_PLAYED } TapePoint;
typedef void TapeProbe(void *arg, const Tape *, TapePoint, const OpDef *, const Call *, Need);

/* The data that every op of a run needs. The struct is plain data that belongs to the caller and does not change
 * during the run. */
typedef struct RunContext {
    Device *device;
    DType dtype; /* the storage type of activations: F64, F32, BF16 or F16 */
    /* whether a sample's result must not depend on other samples (--batch-invariant-mode) */
    bool batch_invariant;
    uint64_t seed;
    const Layout *layout; /* NULL if there is only one rank */
    Comm *comm;           /* NULL if the layout has only one rank */
    /* receives notifications of parameters in use and of complete gradients; may be NULL */
    Sync *sync;
    TapeProbe *probe; /* NULL if there is no observer */
    void *probe_arg;
    /* whether outputs of ops are rounded to the grid of the exact lane (exact_on_grid) */
    bool exact;
    /* whether column-parallel layers keep their gathered inputs until the backward pass */
    bool keeps_gathered;
    /* for dry runs: number of rows that this rank's experts receive, relative to an equal share; 0 means 1, and
     * INFINITY means all rows */
    double experts_share;
    bool postpones_experts; /* whether gradients of the experts' weights overlap with an all-to-all */
    unsigned at_once;       /* mask of the axes whose collectives must not overlap with other work */
    /* whether activations are registered with the tensor-parallel group (comm_register) */
    bool registered;
} RunContext;

/* The data about a microbatch that the ops of an open tape need. */
typedef struct MicrobatchContext {
    /* whether a backward pass will follow; if not, blocks (tape_block) keep only their outputs */
    bool recording;
    bool training; /* whether dropout is active */
    bool dropless; /* whether experts have no capacity */
    /* whether no op has written a weight since the last copy to the device (device_copy) */
    bool steady;
    int64_t first_sample; /* index of the microbatch's first sample among all samples of the run */
    double aux_scale;     /* the gradient of the step's loss with respect to an auxiliary loss */
} MicrobatchContext;

/* The exact lane rounds every value that is not a partial sum to a multiple of 2^-20. A sum of products is then
 * exact with any sharding if its magnitude is below 2^13. Every value is rounded to the same grid point in
 * every layout, unless rounding noise of 2^-53 crosses the midpoint between two points. In practice, all
 * layouts are therefore bitwise equal. */
enum { EXACT_GRID_BITS = 20 };
static inline double exact_on_grid(double x) {
    return ldexp(rint(ldexp(x, EXACT_GRID_BITS)), -EXACT_GRID_BITS);
}

Tape *tape_new(const RunContext *, Space *slot, Space *transient);
void tape_free(Tape *);
const RunContext *tape_context(const Tape *);
/* Sets the fiber on which the tape runs. The tape pauses the fiber before each wait for an operation that does not
 * move integers, so that other fibers can compute. If the fiber is NULL, there are no pauses. */
void tape_pauses(Tape *, Fiber *);
/* Sets the space for later gradients and temporaries. When this function is called, no gradient or temporary
 * may be in use. */
void tape_transient_to(Tape *, Space *transient);
/* Opens the tape for one forward pass, and discards everything that was recorded or allocated before. The
 * context is copied. */
void tape_begin(Tape *, const MicrobatchContext *);
const MicrobatchContext *tape_microbatch(const Tape *);
/* Discards everything on the tape in constant time. */
void tape_end(Tape *);
/* Returns zeroed host memory that exists until tape_end, for data that a block (tape_block) reads again in its backward
 * pass. */
void *tape_alloc(Tape *, size_t bytes);

/* Returns whether a backward pass will follow the op that is running. During training, the result is true
 * exactly once for each op of a microbatch, even if a block runs the op again. During an evaluation, the result
 * is always false. Code that counts or accumulates outside the tape must check the result. */
bool tape_is_recording(const Tape *);
/* tape_axis returns the number of ranks along an axis. tape_group returns this rank's group along the axes of
 * a mask. */
int tape_axis(const Tape *, Axis);
Group tape_group(const Tape *, unsigned mask);
/* Returns the positions of the rows of x [s,b,...] in a sequence of *total positions, which is sharded over
 * CP in zigzag order (base/zigzag.h), and over TP if x is V on that axis. */
SequenceSlice tape_slice(const Tape *, const Tensor *x, int64_t *total);
/* A branch (nn/branch.h) must call this function halfway through its forward pass. With sequence parallelism,
 * only a norm separates a branch's reduce-scatter from the all-gather of the next branch. If passes paused only
 * between branches, at most one of these two operations would be hidden. If a pass also pauses halfway, another
 * microbatch runs its norm during the pause, so that each half of the branch hides one operation. The backward pass
 * also pauses halfway, unless it gathers the branch's input again and therefore pauses for the gather. */
void tape_pause_halfway(Tape *);

/* ---- tensors, blocks, offloading and the backward pass ---- */

/* Returns a new tensor, which exists until the current forward pass is discarded or, in a backward pass, until its node
 * has run. */
Tensor *tape_tensor(Tape *, DType, int ndim, const int64_t *dim);
/* Returns a tensor that needs a gradient but was not computed on this tape, such as an input from another
 * pipeline stage. After tape_backward, tape_grad returns the tensor's gradient. `data` is the caller's memory.
 * If `data` is NULL, memory in the slot space is used. */
Tensor *tape_input(Tape *, void *data, DType, int ndim, const int64_t *dim, SpmdType);
/* Sets the caller's memory for the stage's output, which is sent to another stage, and is not read by backward
 * functions. The output is the tensor that the next op or block after tape_output_next returns. If `memory` is
 * NULL, which is the default after tape_begin, the slot space is used. */
void tape_output_to(Tape *, void *memory);
void tape_output_next(Tape *);

/* Runs fn(tape, self, x), and keeps only x and the output of fn. The backward pass runs fn again. If the tape does not
 * record, the intermediate tensors of fn are also dropped. */
typedef Tensor *BlockFn(Tape *, void *self, Tensor *x);
Tensor *tape_block(Tape *, BlockFn *, void *self, Tensor *x);
/* Like tape_block, but keeps only x. The caller must call tape_discard after the last op that reads the output. The
 * backward pass runs fn again before it visits these ops. Pairs of the two calls must be nested or consecutive. */
Tensor *tape_block_discarded(Tape *, BlockFn *, void *self, Tensor *x);
void tape_discard(Tape *, Tensor *y);
/* If the tape does not record, tape_free_except frees the tensors that have been allocated since
 * tape_frees_begin. It keeps those that contain the data of one of the n tensors in `kept`, any of which may be NULL.
 * Call tape_frees_end at the end. */
void tape_frees_begin(Tape *);
void tape_free_except(Tape *, const Tensor *const *kept, int n);
void tape_frees_end(Tape *);
/* Sets the memory for the activations of layers that run between tape_offload_begin and tape_offload_end. The
 * caller owns the Offload. If the Offload is NULL, the slot space is used. */
void tape_offload_to(Tape *, Offload *);
/* Call tape_offload_begin before each layer of the Offload, and tape_offload_end after it. The layers must be
 * consecutive. In the forward pass, only the next layer may read the outputs of a layer. One sweep must compute
 * all gradients of the layer (NEED_ALL). */
void tape_offload_begin(Tape *, int64_t layer);
void tape_offload_end(Tape *, int64_t layer);
/* Does the same for the activations of one module, if they have at least `least` elements. Between tape_module_begin and
 * tape_module_end, tensors belong to the module. A module may continue until tape_modules_leave, which the caller must
 * call after the last op whose backward function reads the module's tensors. Modules inside a block are not offloaded. */
void tape_offload_module_to(Tape *, OffloadModule, Offload *, int64_t least);
void tape_module_begin(Tape *, OffloadModule);
void tape_module_end(Tape *);
void tape_modules_leave(Tape *);
/* Sets the gradient of the output y to dy, which has the same shape. Call this function before tape_play. */
void tape_give(Tape *, Tensor *y, Tensor *dy);
/* Runs the backward functions of all nodes in reverse order. A DW sweep after a DX sweep reuses the output gradients
 * that were set. */
void tape_play(Tape *, Need);
/* Calls tape_give and tape_play for one output. If dy is NULL, the gradient has already been set. */
static inline void tape_backward(Tape *t, Tensor *y, Tensor *dy, Need need) {
    if (dy) tape_give(t, y, dy);
    tape_play(t, need);
}

/* A TapeTrace is called after every op of a forward or backward pass, whether or not the op is recorded. Unlike
 * a TapeProbe, a TapeTrace does not make the tape wait for operations, so a TapeTrace can be used for counting
 * and timing. */
typedef void TapeTrace(void *arg, const OpDef *, const Call *);
void tape_trace(Tape *, TapeTrace *, void *arg);
