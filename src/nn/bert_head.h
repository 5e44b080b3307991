/* BERT's head for masked language modelling: a dense layer, an activation, a norm, and an output layer with a bias.
 * The head corresponds to Megatron-LM core/models/bert/bert_lm_head.py. */
#pragma once

#include "nn/linear.h"
#include "nn/lm_head.h"
#include "nn/norm.h"

typedef struct BertHeadSpec {
    LmHeadSpec output;
    Activation activation;
    NormAttr norm;
} BertHeadSpec;

typedef struct BertHead {
    const BertHeadSpec *spec;
    Linear dense;
    Norm norm;
    LmHead output;
} BertHead;

/* The prefixes of parameter names in all heads, including task heads (class_head.h). The list ends with NULL. */
extern const char *const BERT_HEADS[];
/* The module is a BertHead, and the spec is a BertHeadSpec. The loss has one value per token, [b, s]. */
extern const HeadOps bert_head;
