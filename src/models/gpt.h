/* The decoder-only transformer: GPT-2 and Llama styles are settings of one model. Megatron-LM
 * core/models/gpt/gpt_model.py: embedding -> layers of [norm, attention, residual, norm, mlp, residual] ->
 * final norm -> output layer without bias. */
#ifndef ISOTRON_MODELS_GPT_H
#define ISOTRON_MODELS_GPT_H

#include "config/config.h"
#include "nn/attention.h"
#include "nn/input.h"
#include "nn/mlp.h"
#include "nn/moe.h"
#include "nn/norm.h"
#include "param/param.h"

typedef struct GptLayer {
    Norm input_norm, mlp_norm;
    Attention attention;
    Mlp mlp;  /* unless there are experts: */
    Moe *moe; /* NULL: none */
    uint64_t attention_dropout_site, mlp_dropout_site;
} GptLayer;

/* A run of layers that are computed together, with the embedding before or the head behind them. */
typedef struct GptStage {
    int64_t first_layer, layers;
    bool embedding, head; /* head: final norm, output layer and loss */
} GptStage;

/* Which part of the model this rank holds. */
typedef struct GptPlace {
    Layout layout;
    const GptStage *stages; /* [n_stages], in the order of the layers; copied */
    int n_stages;
} GptPlace;

typedef struct Gpt {
    const Config *config; /* the caller's, both; they outlive the model */
    const Derived *derived;
    Registry *registry;                           /* owned */
    Device *device;                               /* NULL until gpt_allocate */
    size_t fp8_bytes;                             /* of weights' codes that are kept */
    Param *word_embeddings, *position_embeddings; /* the latter NULL unless learned_absolute */
    GptStage *stages;                             /* [n_stages] */
    int n_stages;
    GptLayer *layers; /* [num_layers], those of the stages are set */
    Norm final_norm;
    Param *output; /* word_embeddings when tied; on a pipeline's last rank a copy of it, of the same name */
    RopeTable rope;
    Tensor counters; /* F64 [num_moe_layers, of a router]; data NULL without experts */
} Gpt;

/* Registers this rank's parameters (place NULL: one rank has them all); takes no device memory. The options
 * kept their rules, `derived` is config_finish's. */
Gpt *gpt_new(const Config *, const Derived *, const GptPlace *);
/* Takes the parameter buffers and tables; `positions` rows of RoPE table. Values are zero until registry_init
 * or a load. */
void gpt_allocate(Gpt *, Device *, DType storage, int64_t positions);
void gpt_free(Gpt *);

/* Before each step: forgets what the routers counted. */
void gpt_zero_counters(Gpt *);
/* After its last microbatch: --moe-router-enable-expert-bias. */
void gpt_update_expert_bias(Gpt *);
/* And --fp8-recipe delayed: the next step's scales. comm NULL: one rank. */
void gpt_end_step_scales(Gpt *, Comm *comm);
/* --fp8-keep-weights: where products with so many tokens take codes, those of weights are kept from now on,
 * and taken by gpt_take_fp8_weights when the weights have changed: at the begin of a training step, and of an
 * evaluation. */
void gpt_keep_fp8_weights(Gpt *, const RunContext *, int64_t tokens);
void gpt_take_fp8_weights(Gpt *, Comm *, bool training);
/* How many linears of this rank's layers have FP8 products, and why those of so many tokens are emulated
 * (quantize_emulation; NULL: none is). */
int64_t gpt_fp8_linears(const Gpt *, const RunContext *, int64_t tokens, const char **emulation);
/* A router's loss (a RouterLoss): its coefficient; its mean over the layers with
 * experts, summed over what the counters (a copy that the host sees) have seen. */
double gpt_router_loss_coeff(const Gpt *, int loss);
double gpt_router_loss(const Gpt *, const double *counters, int loss);

/* One stage: x_sbh is what the stage before gave (ignored at the embedding) -> [s, b, h], or at the head the
 * loss of each token [b, s] in nats; labels I64 [b, s]. The input must live until the tape ends. */
Tensor *gpt_stage(Tape *, const Gpt *, int stage, const ModelInput *, Tensor *x_sbh, Tensor *labels_bs);
/* Positions of a chunk of logits of b samples of s positions, in which the head computes the loss
 * (--cross-entropy-fusion-impl linear); 0: all logits at once. */
int64_t gpt_loss_positions(const Gpt *, int64_t s, int64_t b, DType storage);
/* What goes from stage to stage for a microbatch of b samples: shape [s, b, h] on this rank, and type. */
SpmdType gpt_boundary(const Gpt *, int64_t b, int64_t dim[3]);

/* The whole model, for a Gpt of one stage. */
/* -> logits [s, b, padded vocabulary]. The input must live until the tape ends. */
Tensor *gpt_forward(Tape *, const Gpt *, const ModelInput *);
/* -> loss of each token [b, s] in nats; labels I64 [b, s]. */
Tensor *gpt_loss(Tape *, const Gpt *, const ModelInput *, Tensor *labels_bs);

#endif
