/* The decoder-only transformer: GPT-2 and Llama styles are settings of one model. Megatron-LM
 * core/models/gpt/gpt_model.py: embedding -> layers of [norm, attention, residual, norm, mlp, residual] ->
 * final norm -> output layer without bias. */
#ifndef ISOTRON_MODELS_GPT_H
#define ISOTRON_MODELS_GPT_H

#include "config/config.h"
#include "nn/attention.h"
#include "nn/feed.h"
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
    Param *word_embeddings, *position_embeddings; /* the latter NULL unless learned_absolute */
    GptStage *stages;                             /* [n_stages] */
    int n_stages;
    GptLayer *layers; /* [num_layers], those of the stages are set */
    Norm final_norm;
    Param *output; /* word_embeddings when tied; on a pipeline's last rank a copy of it, of the same name */
    RopeTable rope;
    Tensor **counters; /* [num_layers]: of the layer's router, whoever holds it; NULL: it has no experts */
} Gpt;

/* Registers this rank's parameters (place NULL: one rank has them all); takes no device memory. The options
 * kept their rules, `derived` is config_finish's. */
Gpt *gpt_new(const Config *, const Derived *, const GptPlace *);
/* Takes the parameter buffers and tables; `positions` rows of RoPE table. Values are zero until registry_init
 * or a load. */
void gpt_allocate(Gpt *, Device *, DType storage, int64_t positions);
void gpt_free(Gpt *);

/* A router's loss (a LoadBalancing, or ROUTER_LOSS_Z): its coefficient; its mean over the layers with
 * experts, summed over what the counters (a copy of all that the host sees) have seen. */
double gpt_router_loss_coeff(const Gpt *, int loss);
double gpt_router_loss(const Gpt *, const double *counters, int loss);

/* One stage: x_sbh is what the stage before gave (ignored at the embedding) -> [s, b, h]; or at the head, if
 * the feed has labels, the loss of each token [b, s] in nats, else logits [s, b, padded vocabulary]. The feed
 * must live until the tape ends. */
Tensor *gpt_stage(Tape *, const Gpt *, int stage, const Feed *, Tensor *x_sbh);
/* Positions of a chunk of logits of b samples of s positions, in which the head computes the loss
 * (--cross-entropy-fusion-impl linear); 0: all logits at once. */
int64_t gpt_loss_positions(const Gpt *, int64_t s, int64_t b, DType storage);
/* What goes from stage to stage for a microbatch of b samples: shape [s, b, h] on this rank, and type. */
SpmdType gpt_boundary(const Gpt *, int64_t b, int64_t dim[3]);

#endif
