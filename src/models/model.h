/* The interface of all models, regardless of their family: a plan, which is a pure value made from the
 * options, and this rank's part of the model with its forward. */
#ifndef ISOTRON_MODELS_MODEL_H
#define ISOTRON_MODELS_MODEL_H

#include "config/config.h"
#include "models/stack.h"
#include "nn/attention.h"
#include "nn/embedding.h"
#include "nn/head.h"
#include "nn/moe.h"

enum { MODEL_STACKS = 2, MODEL_FLOWS = 3 };
_Static_assert((int)MODEL_LOSSES <= (int)MODEL_FLOWS, "a Flow has all losses of a head");

/* A tensor of a microbatch that one pipeline stage sends to the next. The layers of all stacks are numbered
 * consecutively. It crosses the borders between stages that have at least first_border and at most last_border
 * layers below. */
typedef struct FlowSpec {
    const char *name;
    int stack;         /* index of the stack whose stream it is */
    int64_t positions; /* number of positions of a full sequence */
    int64_t first_border, last_border;
} FlowSpec;

static inline bool flow_crosses(const FlowSpec *f, int64_t border) {
    return border >= f->first_border && border <= f->last_border;
}

/* A loss of a model. The training loss is the sum of the losses' means. */
typedef struct LossSpec {
    const char *name;   /* Megatron-LM's */
    FieldExtent extent; /* POSITIONS: one of each token, [b, s]; SAMPLES: of each sample, [b, 1] */
    int weights;        /* the field with the weight of each; FIELDS: all are 1 */
    /* With SAMPLES: each loss is of so many samples in a row, the choices of a question, [b / choices, 1], and has
     * the weight of the first; 0: of one. */
    int64_t choices;
} LossSpec;

static inline int64_t loss_samples(const LossSpec *l) { return l->choices ? l->choices : 1; }

typedef struct ModelPlan {
    SampleShape sample; /* what the model reads */
    EmbeddingSpec embedding;
    StackSpec stack[MODEL_STACKS];
    int n_stacks;
    HeadSpec head;
    FlowSpec flow[MODEL_FLOWS];
    int n_flows;
    LossSpec loss[MODEL_LOSSES];
    int n_losses;
    int n_counts; /* numbers after the losses that only evaluations compute and sum, such as right answers */
} ModelPlan;

static inline int model_sums(const ModelPlan *p) { return p->n_losses + p->n_counts; }

/* The tensors of a plan's flows, at the head of its losses; NULL: not at this border. */
typedef struct Flow {
    Tensor *at[MODEL_FLOWS];
} Flow;

/* Layers that are computed together, with the embedding before them or the head after them. */
typedef struct StagePart {
    int64_t first_layer, layers; /* in the consecutive numbering */
    bool embedding, head;
} StagePart;

/* The part of a stack that a stage computes: layers [first, first + layers) of the stack, perhaps with the
 * embedding below its first layer and the norm above its last one. */
typedef struct StackPart {
    int64_t first, layers;
    bool begins, ends;
} StackPart;

/* The place of a rank in a pipeline. */
typedef struct ModelPlace {
    Layout layout;
    const StagePart *stages; /* [n_stages] of all ranks; stage i is on pipeline rank i modulo their number */
    int n_stages;
} ModelPlace;

typedef struct Model Model;

typedef struct Family {
    const char *name;
    /* Only this function, specs.h and option_map.h read options in models/ and nn/. Memory of the plan belongs to the
     * arena. */
    void (*plan)(const Config *, const Derived *, Arena *, ModelPlan *);
    /* The forward of one stage. At the head at[i] is loss i in nats if the feed has labels; else at[0] are logits
     * [s, b, padded vocabulary], or of the class head (nn/class_head.h). */
    Flow (*stage)(Tape *, const Model *, const StagePart *, const Feed *, Flow);
} Family;

struct Model {
    const Family *family;
    const Config *config; /* both are the caller's and outlive the model */
    const Derived *derived;
    ModelPlan plan;
    Registry *registry; /* owned */
    Device *device;     /* NULL until model_allocate */
    StagePart *stages;  /* [n_stages] of this rank */
    int n_stages;
    Embedding embedding; /* where a stage has it; the head likewise */
    Stack stack[MODEL_STACKS];
    void *head; /* its module, where a stage has it; else NULL */
};

/* The plan for these options, which must satisfy their rules; `derived` comes from config_finish. */
const Family *model_family(const Config *);
ModelPlan model_plan(const Config *, const Derived *, Arena *);
/* Model FLOPs of the forward and backward of `samples` samples. */
double model_flops(const ModelPlan *, int64_t samples);

/* Trained parameters of the whole model without padding: all, those of experts, and those that a token uses. */
typedef struct ModelCount {
    int64_t all, experts, active;
} ModelCount;
ModelCount model_count(const Config *, const Derived *);

/* The number of layers of all stacks; the part of stack `stack` in a stage. */
int64_t model_layers(const ModelPlan *);
StackPart model_stack_part(const ModelPlan *, int stack, const StagePart *);

/* Registers this rank's parameters (place NULL: one rank has all), and ties those of which other pipeline ranks
 * have a copy. Allocates no device memory. */
Model *model_new(const Config *, const Derived *, const ModelPlace *);
/* Allocates parameter buffers and tables; positions: the longest sequence. Values are zero until
 * registry_init or a load. */
void model_allocate(Model *, Device *, DType storage, int64_t positions, bool trains);
void model_free(Model *);

/* Runs one stage of this rank; `in` is the output of the previous stage (ignored at the embedding). The feed
 * must live until the tape ends. */
Flow model_stage(Tape *, const Model *, int stage, const Feed *, Flow in);
/* Runs a model of one stage: returns the first loss or the logits. */
Tensor *model_forward(Tape *, const Model *, const Feed *);
/* Shape [s, b, h] on this rank, and type, of each flow for a microbatch of b samples. */
SpmdType model_flow(const Model *, int flow, int64_t b, int64_t dim[3]);

/* A router's loss (a RouterLoss): its coefficient; and its mean over the layers with experts, summed over the
 * microbatches in the step counters (a copy of all of them in host memory). */
double model_router_loss_coeff(const Model *, int loss);
double model_router_loss(const Model *, const double *counters, int loss);

#endif
