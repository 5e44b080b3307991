/* What all else sees of a model, whatever its family: a plan, which is a pure value made from the options,
 * and this rank's part of it with a forward. */
#ifndef ISOTRON_MODELS_MODEL_H
#define ISOTRON_MODELS_MODEL_H

#include "config/config.h"
#include "models/stack.h"
#include "nn/attention.h"
#include "nn/embedding.h"
#include "nn/head.h"
#include "nn/moe.h"

enum { MODEL_STACKS = 2, MODEL_FLOWS = 2 };

/* A tensor that goes from one pipeline stage to the next for a microbatch. */
typedef struct FlowSpec {
    const char *name;
    int stack;         /* whose stream it is */
    int64_t positions; /* of a whole sequence */
} FlowSpec;

typedef struct ModelPlan {
    EmbeddingSpec embedding;
    StackSpec stack[MODEL_STACKS];
    int n_stacks;
    HeadSpec head;
    FlowSpec flow[MODEL_FLOWS];
    int n_flows;
} ModelPlan;

/* The tensors of a plan's flows. */
typedef struct Flow {
    Tensor *at[MODEL_FLOWS];
} Flow;

/* Layers that are computed together, with the embedding before or the head behind them. */
typedef struct StagePart {
    int64_t first_layer, layers;
    bool embedding, head;
} StagePart;

/* The part of a model that a rank holds. */
typedef struct ModelPlace {
    Layout layout;
    const StagePart *stages; /* [n_stages], in the order of the layers; copied */
    int n_stages;
} ModelPlace;

typedef struct Model Model;

typedef struct Family {
    const char *name;
    /* The only reader of options in models/ and nn/, with option_map.h. What the plan points to belongs to
     * the arena. */
    void (*plan)(const Config *, const Derived *, Arena *, ModelPlan *);
    /* The forward of one stage. At the head at[0] is the loss of each token [b, s] in nats if the feed has
     * labels, else logits [s, b, padded vocabulary]. */
    Flow (*stage)(Tape *, const Model *, const StagePart *, const Feed *, Flow);
} Family;

struct Model {
    const Family *family;
    const Config *config; /* the caller's, both; they outlive the model */
    const Derived *derived;
    ModelPlan plan;
    Registry *registry; /* owned */
    Device *device;     /* NULL until model_allocate */
    StagePart *stages;  /* [n_stages] */
    int n_stages;
    Embedding embedding; /* where a stage has it; so with the head */
    Stack stack[MODEL_STACKS];
    void *head; /* its module, where a stage has it; else NULL */
};

/* The plan of these options, which have kept their rules; `derived` is config_finish's. */
const Family *model_family(const Config *);
ModelPlan model_plan(const Config *, const Derived *, Arena *);
/* Model FLOPs of the forward and backward of `samples` sequences of s positions. */
double model_flops(const ModelPlan *, double s, int64_t samples);

/* Registers this rank's parameters (place NULL: one rank has them all); takes no device memory. */
Model *model_new(const Config *, const Derived *, const ModelPlace *);
/* Takes parameter buffers and tables; positions: the most of a sequence. Values are zero until registry_init
 * or a load. */
void model_allocate(Model *, Device *, DType storage, int64_t positions);
void model_free(Model *);

/* One stage of this rank: `in` is what the stage before gave (ignored at the embedding). The feed must live
 * until the tape ends. */
Flow model_stage(Tape *, const Model *, int stage, const Feed *, Flow in);
/* A model of one stage: the loss or the logits. */
Tensor *model_forward(Tape *, const Model *, const Feed *);
/* Shape [s, b, h] on this rank, and type, of each flow for a microbatch of b samples. */
SpmdType model_flow(const Model *, int flow, int64_t b, int64_t dim[3]);

/* Keys and values for `capacity` positions of b samples, for all layers; {0} where there is no attention. */
KvCache model_cache_new(const Model *, DType, int64_t capacity, int64_t b);
void model_cache_free(const Model *, KvCache *);

/* A router's loss (a RouterLoss): its coefficient, and its mean over the layers with
 * experts, summed over what the step counters (a copy of all that the host sees) have seen. */
double model_router_loss_coeff(const Model *, int loss);
double model_router_loss(const Model *, const double *counters, int loss);

#endif
