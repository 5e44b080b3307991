/* The interface of all models, regardless of their family: a plan, which is a pure value made from the
 * options, and this rank's part of the model with its forward. */
#pragma once

#include "config/config.h"
#include "models/stack.h"
#include "nn/head.h"
#include "nn/moe.h"

enum { MODEL_STACKS = 4, MODEL_HEADS = 4, MODEL_FLOWS = 2 * MODEL_STACKS };
_Static_assert((int)MODEL_LOSSES <= (int)MODEL_FLOWS, "a Flow has all losses of a model");

/* A tensor of a microbatch that one pipeline stage sends to the next. The layers of all stacks are numbered
 * consecutively. The tensor crosses each border between stages that has first_border to last_border layers below it. */
typedef struct FlowSpec {
    int stack; /* the index of the stack that has this stream or output */
    int64_t first_border, last_border;
} FlowSpec;

static inline bool flow_crosses(const FlowSpec *f, int64_t border) {
    return border >= f->first_border && border <= f->last_border;
}

/* A pure value. A family lists stacks and heads; model_plan derives the rest from these and the options. */
typedef struct ModelPlan {
    SampleShape sample; /* what the model reads */
    /* A forward computes each stack after the one before, whose output it may read (Feed.encoded). */
    StackSpec stack[MODEL_STACKS];
    int n_stacks;
    /* All heads read the last stack's output. Without labels only the first head runs; only the last one may have
     * counts. */
    HeadSpec head[MODEL_HEADS];
    int n_heads;

    int64_t vocab;              /* without padding */
    int64_t limit;              /* the largest number of positions that the model distinguishes */
    FlowSpec flow[MODEL_FLOWS]; /* the streams of the stacks, then the outputs of all but the last */
    int n_flows;
    LossSpec loss[MODEL_LOSSES]; /* losses of all heads; then the counts */
    int n_losses, n_counts;
} ModelPlan;

static inline int model_sums(const ModelPlan *p) { return p->n_losses + p->n_counts; }

/* The tensors of a plan's flows; after the heads, the losses or the logits. NULL: not at this border. */
typedef struct Flow {
    Tensor *at[MODEL_FLOWS];
} Flow;

/* Layers that are computed together, with the embedding before them or the head after them. */
typedef struct StagePart {
    int64_t first_layer, layers; /* in the consecutive numbering */
    bool embedding, head;
} StagePart;

/* The place of a rank in a pipeline. */
typedef struct ModelPlace {
    Layout layout;
    const StagePart *stages; /* [n_stages] of all ranks; stage i is on pipeline rank i mod pipeline size */
    int n_stages;
} ModelPlace;

typedef struct Model Model;

struct Model {
    ModelPlan plan;
    Registry *registry; /* owned */
    Device *device;     /* NULL until model_allocate */
    StagePart *stages;  /* [n_stages] this rank's stages */
    int n_stages;
    Stack stack[MODEL_STACKS];
    void *head[MODEL_HEADS]; /* the heads' modules, on a rank that has them; else NULL */
};

/* The plan for these options, which must satisfy their rules; `derived` comes from config_finish. The options
 * are read only here, for the plan's specs. The specs' memory belongs to the arena. */
ModelPlan model_plan(const Config *, Arena *);
/* Model FLOPs of the forward and backward of `samples` samples. */
double model_flops(const ModelPlan *, int64_t samples);

/* Numbers of parameters of the whole model, without buffers and padding: all, in experts, used by a token, and trained.
 * */
typedef struct ModelCount {
    int64_t all, experts, active, trained;
} ModelCount;
ModelCount model_count(const Config *);
/* Returns an error if --freeze-parameters names no parameter, or if no parameter is left to train. */
Err model_check_frozen(const Config *);

/* Registers this rank's parameters (place NULL: one rank has all), and ties parameters that several pipeline ranks
 * have. Allocates no device memory. */
Model *model_new(const Config *, const ModelPlace *);
/* Allocates parameter buffers and tables; positions: the longest sequence. Values are zero until
 * registry_init or a load. */
void model_allocate(Model *, Device *, DType storage, int64_t positions, bool trains);
void model_free(Model *);

/* Runs one stage of this rank; `in` is the output of the previous stage (ignored at the embedding). The feed
 * must live until the tape ends. */
Flow model_stage(Tape *, const Model *, int stage, const Feed *, Flow in);
/* Runs a model of one stage: returns the first loss or the logits. */
Tensor *model_forward(Tape *, const Model *, const Feed *);
/* Returns the type of a flow, and its shape [s, b, h] on this rank, for a microbatch of b samples. */
SpmdType model_flow(const Model *, int flow, int64_t b, int64_t dim[3]);

/* A router's loss (`loss` is a RouterLoss): its coefficient, and its mean over the layers with experts, summed over
 * microbatches. `counters`: a copy of all step counters in host memory. by_layer: the sum of each layer, NaN for one
 * without experts; NULL: not needed. */
double model_router_loss_coeff(const Model *, int loss);
double model_router_loss(const Model *, const double *counters, int loss, double *by_layer);
