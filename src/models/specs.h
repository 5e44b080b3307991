/* Specs of the parts that families of transformers share, made from the options. Only the families' plans call
 * these. */
#pragma once

#include "config/config.h"
#include "models/stack.h"
#include "nn/attention.h"
#include "nn/embedding.h"
#include "nn/head.h"

EmbeddingSpec *spec_words(const Config *, Arena *);
NormAttr spec_norm(const Config *);
/* The activation of dense MLPs, or of routed experts. */
ActivationAttr spec_activation(const Config *, bool routed);
/* A language model's head. words: the input's table, to which it is tied unless --untie-embeddings-and-output-weights
 * is given. */
HeadSpec spec_lm_head(const Config *, const EmbeddingSpec *words, Arena *);

typedef struct StackShape {
    const char *name; /* the scope of its parameters' names */
    InputSpec input;
    int64_t positions, layers, below; /* below: layers of the stacks before it */
    /* The branches of a layer, by their letters in nn/branches.def. `layer` counts the layers of all stacks. NULL:
     * "*-", or "*E" in layers with experts. */
    const char *(*letters)(const Config *, int64_t layer);
    const char *relative; /* the name of its bias parameter, with --position-embedding-type relative */
    bool causal;
    int64_t
        encoder_positions; /* positions of the encoder that its cross-attention reads; 0: no cross-attention */
} StackShape;
StackSpec spec_stack(const Config *, const StackShape *, Arena *);

/* ---- one function for each kind of branch, in specs/<kind>.c ---- */

typedef struct LayerPlace {
    const Config *config;
    const StackShape *stack;
    int64_t layer; /* among the layers of all stacks */
    Arena *arena;  /* owns the specs */
} LayerPlace;

/* Sets `spec` and the other fields that are specific to this kind of branch. */
#define BRANCH(kind, ...) void kind##_spec(const LayerPlace *, BranchSpec *);
#include "nn/branches.def"
#undef BRANCH

AttentionSpec spec_attention(const LayerPlace *);
QuantSpec spec_quant(const Config *, int64_t layer);
bool spec_recomputes(const Config *, RecomputeModule);
