/* Specs of the parts that families of transformers share, made from the options. Only the families' plans call
 * these. */
#ifndef ISOTRON_MODELS_SPECS_H
#define ISOTRON_MODELS_SPECS_H

#include "config/config.h"
#include "models/stack.h"
#include "nn/embedding.h"

EmbeddingSpec spec_embedding(const Config *, const Derived *);
NormAttr spec_norm(const Config *);
/* The layers of the model. `name` is the scope of their parameters' names. */
StackSpec spec_stack(const Config *, const Derived *, const char *name, bool causal, Arena *);

#endif
