/* A stack of layers over one residual stream. A layer is a list of residual branches (nn/branches.def).
 * stack.c implements the parts that all layers share: norms, dropout, residual sums (fused into the next norm),
 * recomputation and offloading. The code corresponds to Megatron-LM core/transformer/transformer_block.py and
 * transformer_layer.py. */
#pragma once

#include "nn/branch.h"
#include "nn/input.h"
#include "nn/stream.h"

enum { LAYER_BRANCHES = 8 };

/* A branch's norms. */
typedef enum BranchNorms {
    NORM_INPUT,  /* normalizes the branch's input */
    NORM_OUTPUT, /* normalizes the branch's output */
    NORM_BOTH,
    NORM_SUM,    /* normalizes the residual sum (the original Transformer); not in a parallel layer */
    NORM_SHARED, /* the branch uses the normalized input of the first branch; only in a parallel layer */
} BranchNorms;

typedef struct BranchSpec {
    BranchId kind;
    BranchNorms norms;
    NormAttr norm;
    double multiplier;   /* factor that scales the branch's output */
    double dropout;      /* dropout rate of the branch's output */
    bool recompute;      /* whether the backward pass recomputes the branch */
    bool recompute_norm; /* whether the backward pass recomputes the branch's normalized input */
    bool offloads;       /* whether activations of modules are offloaded */
    const void *spec;    /* the type of the spec depends on the kind */
} BranchSpec;

typedef struct LayerSpec {
    BranchSpec branch[LAYER_BRANCHES];
    int n;
    /* Whether all branches read only the layer's input. Otherwise, each branch also reads the outputs of earlier
     * branches. */
    bool parallel;
} LayerSpec;

/* Full recomputation: the backward pass runs layers again. */
typedef enum StackRecompute {
    RECOMPUTES_NO_LAYER,
    RECOMPUTES_CHUNKS, /* all layers, in chunks of `recomputed` layers; the input of each chunk is kept */
    RECOMPUTES_FIRST,  /* the first `recomputed` layers of each stage, one by one */
} StackRecompute;

typedef struct StackSpec {
    const char *name; /* the scope of the stack's parameter names, such as "decoder" */
    bool repeats;     /* whether the stack uses the parameters of an earlier stack with the same name */
    bool detached;    /* true if the stack passes no gradient to the previous stack */
    /* name of the stack's only layer; NULL if layers are named layers.0, layers.1, ... */
    const char *only;
    bool
        numbered; /* whether each branch of the only layer has a scope: `only`.layers.0, `only`.layers.1, ... */
    InputSpec input;
    /* [n_fields]: all fields that the stack's input and branches read. If a microbatch lacks the first field, its
     * forward pass skips the stack. NULL means that the stack reads the microbatch's fields under the same names. */
    const FeedField *fields;
    int n_fields;
    int64_t positions, hidden; /* positions: length of a full sequence */
    LayerSpec *layer;          /* [n] */
    int64_t n, below;          /* below: number of layers in the stacks before this one */
    bool has_final;            /* whether `final` normalizes the stack's output */
    NormAttr final;
    StackRecompute recompute;
    int64_t recomputed;
    /* Number of layers whose activations are offloaded to host memory (tape/offload.h), counted from the model's
     * first layer. Offloading must not be combined with full recomputation or pipeline
     * parallelism. */
    int64_t offloaded;
    /* A mask of OffloadModule, and the number of elements from which a tensor is offloaded. The same conditions apply. */
    unsigned offloaded_modules;
    int64_t offloaded_least;
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
    int n; /* number of branches; 0 if the layer is on another rank */
    bool parallel;
} Layer;

typedef struct Stack {
    const StackSpec *spec;
    /* the stack's input module; NULL on ranks that do not hold the start of the stack */
    void *input;
    Layer *layer; /* [spec->n] */
    /* [spec->n * LAYER_BRANCHES]: the step counters of each branch, including branches on other ranks; NULL if there
     * are none */
    Tensor **counters;
    Norm final; /* exists only on the rank that holds the last layer */
} Stack;

/* Registers the step counters of all layers. The spec must outlive the registry. */
void stack_init(Stack *, Registry *, const StackSpec *);
/* Registers the stack's input. */
void stack_add_input(Stack *, Registry *);
/* Registers layers [first, first + n), which this rank holds. */
void stack_add_layers(Stack *, Registry *, int64_t first, int64_t n);
void stack_add_final_norm(Stack *, Registry *);
/* Runs layers [first, first + n), and returns their output. The output is sent to another stage
 * (tape_output_to). The feed must exist until the tape ends. */
Tensor *stack_output(Tape *, const Stack *, int64_t first, int64_t n, const Feed *, Stream);
/* Runs the stack's last layers as stack_output does, and applies the final norm if the stack has one. */
Tensor *stack_end(Tape *, const Stack *, int64_t first, int64_t n, const Feed *, Stream);
/* Returns how many tensors this layer's branches before branch k keep in the cache (BranchOps.caches). Writes the
 * tensors' specs to `out` unless it is NULL. */
int stack_caches(const StackSpec *, const Layout *, int64_t layer, int k, CacheSpec *out);
double stack_flops(const StackSpec *); /* as in BranchOps.flops */
