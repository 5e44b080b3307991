/* BERT's head for the label of a sample: pooler, dropout, linear layer. It chooses one of the classes of a
 * sample, such as the order of its sentences, or one of the samples that are the choices of a question.
 * Megatron-LM core/models/bert/bert_model.py; Megatron-LM's tasks: model/classification.py,
 * multiple_choice.py. */
#pragma once

#include "nn/head.h"
#include "nn/linear.h"

typedef struct ClassHeadSpec {
    const char *name; /* of its linear layer */
    int64_t hidden;
    int64_t classes; /* of a sample; with choices not used */
    int64_t choices; /* of a question, each a sample; 1: samples have classes */
    double init_std, dropout;
    bool counts; /* right answers in an evaluation */
} ClassHeadSpec;

typedef struct ClassHead {
    const ClassHeadSpec *spec;
    Linear pooler, output;
    uint64_t dropout_site;
} ClassHead;

/* The module is a ClassHead, the spec a ClassHeadSpec. Its loss is that of sentence_labels: of each sample
 * [b, 1] or question [b / choices, 1], whose label is that of its first choice. Its count, in the same shape,
 * is 1 where the largest logit is the label's, else 0. Logits: [1, b, classes] or [1, b / choices, choices].
 * Over context-parallel ranks only the first rank's numbers are the model's. */
extern const HeadOps class_head;
