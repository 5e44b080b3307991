/* A tape's state, which the files in this folder share. */
#pragma once

#include "tape/tape_backward.h"

typedef struct TensorList {
    Tensor **items;
    size_t n, cap;
} TensorList;

struct Tape {
    const RunContext *context;
    MicrobatchContext microbatch;
    Space *slot, *transient;
    /* the space of tape_tensor: the slot, an offloaded layer's space, or the transient space inside a block */
    Space *space;
    Offload *offload; /* NULL if nothing is offloaded */
    struct {
        Offload *offload; /* NULL if the module is not offloaded */
        int64_t runs;     /* number of times that the module has begun in this pass */
        Space *space;     /* the space of the module's tensors until tape_modules_leave, otherwise NULL */
    } module[OFFLOAD_MODULES];
    int64_t least; /* number of elements from which a module's tensor is offloaded */
    bool in_module;
    Arena *arena;       /* Tensor headers and attributes */
    void *output;       /* memory for the stage's output; NULL means memory in the slot */
    bool output_next;   /* the next tensor in the slot is the stage's output */
    TensorList dropped; /* tensors of open blocks, in the transient space */
    Node *nodes;
    size_t n_nodes, cap_nodes;
    bool recording;
    bool trains, playing; /* trains: a backward pass will follow; playing: the backward pass is running */
    struct {
        Postponed *run; /* NULL if no call is postponed */
        void *arg;
        Call call;
    } postponed;
    bool postpones; /* whether the current node has postponed the rest of its backward function */
    Fiber *fiber;   /* NULL if the tape waits without pausing */
    /* [parameter number]: number of ops whose backward function has not run yet, for sync_ready */
    int *uses;
    int n_uses;
    TapeTrace *trace;
    void *trace_arg;
};

/* GRAD_BORROWED: the gradient's memory belongs to the caller's dy or to the tensor itself, so it is never
 * freed. */
enum { GRAD_BORROWED = 8, OFF_GRID = 16 };

static inline bool is_parameter(const Tensor *x) { return x && x->grad && x->grad->flags & TENSOR_MAIN_GRAD; }

Tensor *tape_header(Tape *, Tensor);
Tensor *tape_take(Tape *, Space *, DType, int ndim, const int64_t *dim);
/* Returns a tensor that exists until the current forward pass is discarded. */
Tensor *tape_take_kept(Tape *, DType, int ndim, const int64_t *dim);
/* Inside a block, adds the tensor to the list of tensors that are freed at the block's end. */
void tape_note_dropped(Tape *, Tensor *);
void tape_append(Tape *, const OpDef *, Call, size_t attr_size, NodeBackward *);
void tape_probe(Tape *, TapePoint, const OpDef *, const Call *, Need);
/* Runs the backward functions of nodes [first, n_nodes) in reverse order. */
void tape_sweep(Tape *, size_t first, Need);
void tape_grad_release(Tape *, Tensor *);
