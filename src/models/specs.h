/* Specs of the parts that families of transformers share, made from the options. Only the families' plans call
 * these. */
#ifndef ISOTRON_MODELS_SPECS_H
#define ISOTRON_MODELS_SPECS_H

#include "config/config.h"
#include "models/stack.h"
#include "nn/embedding.h"
#include "nn/head.h"

EmbeddingSpec spec_embedding(const Config *, const Derived *);
NormAttr spec_norm(const Config *);
/* A language model's head. */
HeadSpec spec_lm_head(const Config *, const Derived *, Arena *);

typedef struct StackShape {
    const char *name;      /* the scope of its parameters' names */
    int64_t layers, below; /* below: layers of the stacks before it */
    const char *relative;  /* the name of its bias, with --position-embedding-type relative */
    bool causal;
    int64_t encoder_positions; /* of the encoder that its cross-attention reads; 0: it has none */
} StackShape;
StackSpec spec_stack(const Config *, const Derived *, const StackShape *, Arena *);

#endif
