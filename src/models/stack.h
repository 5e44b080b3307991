/* A stack of layers over one residual stream. A layer is a list of residual branches (nn/branches.def).
 * stack.c implements the parts that all layers share: norms, dropout, residual sums (fused into the next
 * norm), recomputation, offloading. Megatron-LM core/transformer/transformer_block.py,
 * transformer_layer.py. */
#pragma once

#include "nn/branch.h"
#include "nn/input.h"
#include "nn/stream.h"

enum { LAYER_BRANCHES = 3 };

/* The norms of a branch. */
typedef enum BranchNorms {
    NORM_INPUT,  /* norm of the branch's input */
    NORM_OUTPUT, /* norm of the branch's output */
    NORM_BOTH,
    NORM_SUM,    /* norm of the residual sum (the original Transformer); not in a parallel layer */
    NORM_SHARED, /* the branch uses the normalized input of the first branch; only in a parallel layer */
} BranchNorms;

typedef struct BranchSpec {
    BranchId kind;
    BranchNorms norms;
    NormAttr norm;
    double multiplier; /* scales the branch's output */
    double dropout;    /* dropout rate of the branch's output */
    bool recompute;    /* whether the branch is recomputed in the backward */
    const void *spec;  /* the spec, whose type depends on the kind */
} BranchSpec;

typedef struct LayerSpec {
    BranchSpec branch[LAYER_BRANCHES];
    int n;
    /* all branches read the input of the layer; if false, each branch also reads the outputs of earlier
     * branches */
    bool parallel;
} LayerSpec;

/* Full recomputation runs layers again in the backward. */
typedef enum StackRecompute {
    RECOMPUTES_NO_LAYER,
    RECOMPUTES_CHUNKS, /* all layers, in chunks of `recomputed` layers; the input of each chunk is kept */
    RECOMPUTES_FIRST,  /* the first `recomputed` layers of each stage, one by one */
} StackRecompute;

typedef struct StackSpec {
    const char *name; /* the scope of its parameters' names, such as "decoder" */
    bool repeats;     /* whether its parameters are those of an earlier stack of the same name */
    bool detached;    /* whether no gradient flows to the previous stack */
    const char *only; /* the name of the only layer in this scope; NULL means that layers are named layers.0,
                         layers.1, ... */
    InputSpec input;
    /* [n_fields]: all fields that the stack's input and branches read. A forward without the first field
     * skips the stack. If it is NULL, the stack reads the microbatch's fields under the same names. */
    const FeedField *fields;
    int n_fields;
    int64_t positions, hidden; /* positions: length of a full sequence */
    LayerSpec *layer;          /* [n] */
    int64_t n, below;          /* below: number of layers in the stacks before this one */
    bool has_final;            /* whether `final` normalizes the stack's output */
    NormAttr final;
    StackRecompute recompute;
    int64_t recomputed;
    /* The number of layers, from the first one of all stacks, whose activations are offloaded to host memory
     * (tape/offload.h). It must not be combined with recomputation or pipeline parallelism. */
    int64_t offloaded;
} StackSpec;

typedef struct Branch {
    const BranchSpec *spec;
    Norm norm, post_norm;
    void *self;
    uint64_t dropout_site;
    int cache; /* index of the branch's first tensor in the stack's cache */
} Branch;

typedef struct Layer {
    Branch branch[LAYER_BRANCHES];
    int n; /* number of branches, or 0 if the layer is on another rank */
    bool parallel;
} Layer;

typedef struct Stack {
    const StackSpec *spec;
    void *input;  /* module of the stack's input; NULL on ranks that do not have the beginning of the stack */
    Layer *layer; /* [spec->n] */
    /* [spec->n * LAYER_BRANCHES]: step counters of each branch, including those on other ranks, or NULL if
     * there is none */
    Tensor **counters;
    Norm final; /* exists only on the rank of the last layer */
} Stack;

/* Registers the step counters of all layers. The spec must outlive the registry. */
void stack_init(Stack *, Registry *, const StackSpec *);
/* Registers the input. */
void stack_add_input(Stack *, Registry *);
/* Registers layers [first, first + n), which this rank holds. */
void stack_add_layers(Stack *, Registry *, int64_t first, int64_t n);
void stack_add_final_norm(Stack *, Registry *);
/* Runs layers [first, first + n) and returns their output, which is sent to another stage (tape_output_to). The feed
 * must live until the tape ends. */
Tensor *stack_output(Tape *, const Stack *, int64_t first, int64_t n, const Feed *, Stream);
/* Like stack_output, for the last layers, followed by the final norm if the stack has one. */
Tensor *stack_end(Tape *, const Stack *, int64_t first, int64_t n, const Feed *, Stream);
/* The number of tensors that the branches before branch k of this layer keep in the cache (BranchOps.caches).
 * If `out` is not NULL, it receives the specs of these tensors. */
int stack_caches(const StackSpec *, const Layout *, int64_t layer, int k, CacheSpec *out);
double stack_flops(const StackSpec *); /* as BranchOps.flops */
