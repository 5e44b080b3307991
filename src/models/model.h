/* The interface to all model families. The interface consists of a plan (a pure value computed from the
 * options) and this rank's part of the model with its forward pass. */
#pragma once

#include <stdio.h>

#include "config/config.h"
#include "models/stack.h"
#include "nn/head.h"
#include "nn/moe.h"

enum { MODEL_STACKS = 1 + MTP_LAYERS, MODEL_HEADS = MODEL_STACKS, MODEL_FLOWS = 2 * MODEL_STACKS };
_Static_assert((int)MODEL_LOSSES <= (int)MODEL_FLOWS, "a Flow must contain all losses of a model");

/* A tensor that one pipeline stage sends to the next for each microbatch. The layers of all stacks are numbered
 * consecutively. The tensor crosses a border between stages if the number of layers before the border is in
 * [first_border, last_border]. */
typedef struct FlowSpec {
    int stack; /* index of the stack to which this stream or output belongs */
    int64_t first_border, last_border;
    bool auxiliary; /* whether the stack is used only for auxiliary losses; evaluations skip such stacks */
} FlowSpec;

static inline bool flow_crosses(const FlowSpec *f, int64_t border) {
    return border >= f->first_border && border <= f->last_border;
}

/* A model's plan, which is a pure value. A family lists stacks and heads; model_plan derives the other members from
 * these and the options. */
typedef struct ModelPlan {
    SampleShape sample; /* the fields that the model reads */
    /* A forward pass computes the stacks in order. Each stack can read the previous stack's output (Feed.encoded). The
     * stacks after the first head's stack are used only for auxiliary losses. */
    StackSpec stack[MODEL_STACKS];
    int n_stacks;
    /* Without labels, only the first head runs. Generation uses this head's stack. */
    HeadSpec head[MODEL_HEADS];
    int n_heads;

    int64_t vocab; /* size of the vocabulary without padding */
    int64_t limit; /* number of positions that the model can distinguish */
    /* the streams of all stacks, followed by the outputs of all stacks except the last one */
    FlowSpec flow[MODEL_FLOWS];
    int n_flows;
    LossSpec loss[MODEL_LOSSES]; /* the losses of all heads, followed by the counts */
    int n_losses, n_counts;
    int n_main;                /* number of losses that are not auxiliary; these losses come first */
    int counted[MODEL_LOSSES]; /* [n_counts]: the index of the loss whose weights each count uses */
} ModelPlan;

static inline int model_sums(const ModelPlan *p) { return p->n_losses + p->n_counts; }

/* The tensors that a stage passes to the next stage, one for each flow in the plan. A tensor is NULL if its
 * flow does not cross this border. After the last stage, the tensors are the losses or the logits. */
typedef struct Flow {
    Tensor *at[MODEL_FLOWS];
} Flow;

/* Layers that are computed together, with the embedding before them or the head after them. */
typedef struct StagePart {
    int64_t first_layer, layers; /* numbered consecutively over all stacks */
    bool embedding, head;
} StagePart;

/* A rank's place in the pipeline. */
typedef struct ModelPlace {
    Layout layout;
    /* [n_stages]: the stages of all ranks; stage i is on pipeline rank i mod (pipeline size) */
    const StagePart *stages;
    int n_stages;
} ModelPlace;

typedef struct Model Model;

struct Model {
    ModelPlan plan;
    Registry *registry; /* owned */
    Device *device;     /* NULL until model_allocate */
    StagePart *stages;  /* [n_stages]: this rank's stages */
    int n_stages;
    Stack stack[MODEL_STACKS];
    void *head[MODEL_HEADS]; /* the heads' modules; NULL on ranks without heads */
};

/* Returns the plan for these options, which must have passed the rules and config_finish. The arena owns the memory for
 * the plan's specs. The parts of a model read options only from these specs. */
ModelPlan model_plan(const Config *, Arena *);
/* Returns the model FLOPs for the forward and backward passes over `samples` samples. */
double model_flops(const ModelPlan *, int64_t samples);

/* Parameter counts of the entire model, excluding buffers and padding: all parameters, expert parameters, parameters
 * that one token uses, and trained parameters. */
typedef struct ModelCount {
    int64_t all, experts, active, trained;
} ModelCount;
ModelCount model_count(const Config *);
/* Returns an error if --freeze-parameters matches no parameter, or leaves no parameter to train. */
Err model_check_frozen(const Config *);
/* Prints a note for each pattern of --te-precision-config-file that matches no module. */
void model_note_precision(const Config *, FILE *to);

/* Registers this rank's parameters, and ties parameters that have copies on several pipeline ranks. If the ModelPlace
 * is NULL, this rank holds the entire model. Allocates no device memory. */
Model *model_new(const Config *, const ModelPlace *);
/* Allocates parameter buffers and tables. `positions` is the length of the longest sequence. Values are zero
 * until registry_init or a load. */
void model_allocate(Model *, Device *, DType storage, int64_t positions, bool trains);
void model_free(Model *);

/* Runs one of this rank's stages. `in` is the output of the previous stage (ignored by the stage with the
 * embedding). The feed must exist until the tape ends. */
Flow model_stage(Tape *, const Model *, int stage, const Feed *, Flow in);
/* Runs a model that has only one stage, and returns the first loss or the logits. */
Tensor *model_forward(Tape *, const Model *, const Feed *);
/* Runs only the stack at depth k >= 1, which predicts the token k + 1 positions ahead, and returns its head's logits.
 * Feed.tokens contains the tokens k positions ahead, and Feed.encoded contains the previous stack's outputs. */
Tensor *model_forward_ahead(Tape *, const Model *, int k, const Feed *);
/* Returns the type of a flow, and its shape [s, b, h] on this rank, for a microbatch of b samples. */
SpmdType model_flow(const Model *, int flow, int64_t b, int64_t dim[3]);

bool model_has_experts(const ModelPlan *);
/* Return a router loss's coefficient, and the loss's mean over the MoE layers, summed over microbatches. `loss` is a
 * RouterLoss, and `counters` is a copy of all step counters in host memory. If by_layer is not NULL, it receives each
 * layer's sum, or NaN for a layer without experts. */
double model_router_loss_coeff(const Model *, int loss);
double model_router_loss(const Model *, const double *counters, int loss, double *by_layer);
