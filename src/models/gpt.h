/* The decoder-only transformer: GPT-2 and Llama styles are settings of one model. Megatron-LM
 * core/models/gpt/gpt_model.py: embedding -> layers of [norm, attention, residual, norm, mlp, residual] ->
 * final norm -> output layer without bias. */
#ifndef ISOTRON_MODELS_GPT_H
#define ISOTRON_MODELS_GPT_H

#include "config/config.h"
#include "nn/attention.h"
#include "nn/input.h"
#include "nn/mlp.h"
#include "nn/norm.h"
#include "param/param.h"

typedef struct GptLayer {
    Norm input_norm, mlp_norm;
    Attention attention;
    Mlp mlp;
    uint64_t attention_dropout_site, mlp_dropout_site;
} GptLayer;

typedef struct Gpt {
    const Config *config; /* the caller's, both; they outlive the model */
    const Derived *derived;
    Registry *registry;                           /* owned */
    Device *device;                               /* NULL until gpt_allocate */
    Param *word_embeddings, *position_embeddings; /* the latter NULL unless learned_absolute */
    GptLayer *layers;                             /* [num_layers] */
    Norm final_norm;
    Param *output; /* word_embeddings when tied */
    RopeTable rope;
} Gpt;

/* Registers this rank's parameters (layout NULL: one rank has them all); takes no device memory. The options
 * kept their rules, `derived` is config_finish's. */
Gpt *gpt_new(const Config *, const Derived *, const Layout *);
/* Takes the parameter buffers and tables; `positions` rows of RoPE table. Values are zero until registry_init
 * or a load. */
void gpt_allocate(Gpt *, Device *, DType storage, int64_t positions);
void gpt_free(Gpt *);

/* -> logits [s, b, padded vocabulary]. The input must live until the tape ends. */
Tensor *gpt_forward(Tape *, const Gpt *, const ModelInput *);
/* -> loss of each token [b, s] in nats; labels I64 [b, s]. */
Tensor *gpt_loss(Tape *, const Gpt *, const ModelInput *, Tensor *labels_bs);

#endif
