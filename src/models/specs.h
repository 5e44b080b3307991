/* Creates, from the options, the specs for parts that all transformer families share. Only the families' plans call
 * these functions. */
#pragma once

#include "config/config.h"
#include "models/stack.h"
#include "nn/attention.h"
#include "nn/embedding.h"
#include "nn/head.h"

EmbeddingSpec *spec_words(const Config *, Arena *);
NormAttr spec_norm(const Config *);
/* Returns the activation for routed experts if `routed` is set, and otherwise that for dense MLPs. */
ActivationAttr spec_activation(const Config *, bool routed);
/* Returns a language model's head. `words` is the input's embedding table; the head is tied to it unless
 * --untie-embeddings-and-output-weights is given. */
HeadSpec spec_lm_head(const Config *, const EmbeddingSpec *words, Arena *);

typedef struct StackShape {
    const char *name; /* the scope of the stack's parameter names */
    InputSpec input;
    int64_t positions, layers, below; /* below: number of layers in the stacks before this one */
    /* Returns a layer's branches as their letters in nn/branches.def. `layer` counts the layers in all stacks. If this
     * function is NULL, --hybrid-layer-pattern contains the letter. Without a pattern, the letters are "*-", or "*E" in
     * MoE layers. --multi-latent-attention replaces "*" with "+", and --linear-attention-freq with "G". */
    const char *(*letters)(const Config *, int64_t layer);
    /* the name of the stack's bias parameter, with --position-embedding-type relative */
    const char *relative;
    bool causal;
    /* number of positions in the encoder's output, which cross-attention reads; 0 if there is no cross-attention */
    int64_t encoder_positions;
} StackShape;
StackSpec spec_stack(const Config *, const StackShape *, Arena *);

/* ---- one function for each kind of branch, in specs/<kind>.c ---- */

typedef struct LayerPlace {
    const Config *config;
    const StackShape *stack;
    int64_t layer; /* index among the layers of all stacks */
    Arena *arena;  /* owns the specs */
} LayerPlace;

/* Each function sets the BranchSpec fields that are specific to its kind, such as `spec`. */
#define BRANCH(kind, ...) void kind##_spec(const LayerPlace *, BranchSpec *);
#include "nn/branches.def"
#undef BRANCH

AttentionSpec spec_attention(const LayerPlace *);
QuantSpec spec_quant(const Config *, int64_t layer, Arena *);
bool spec_recomputes(const Config *, RecomputeModule);
