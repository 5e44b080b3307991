/* BERT's head for the label of a sample: pooler, dropout, linear layer. It classifies each sample, for example by the
 * order of its sentences, or selects one of a question's choices, each of which is a sample. Megatron-LM
 * core/models/bert/bert_model.py; Megatron-LM's tasks: model/classification.py, multiple_choice.py. */
#pragma once

#include "nn/head.h"
#include "nn/linear.h"

typedef struct ClassHeadSpec {
    const char *name; /* name of the linear layer */
    int64_t hidden;
    int64_t classes; /* classes per sample; unused with choices */
    int64_t choices; /* choices (samples) per question; 1: samples have classes */
    double init_std, dropout;
    bool counts; /* counts right answers in an evaluation */
} ClassHeadSpec;

typedef struct ClassHead {
    const ClassHeadSpec *spec;
    Linear pooler, output;
    uint64_t dropout_site;
} ClassHead;

/* The module is a ClassHead, the spec a ClassHeadSpec. The loss has one value per sample, [b, 1], or per question, [b /
 * choices, 1]. Labels are sentence_labels; the label of a question is that of the first choice. The count has the
 * loss's shape: 1 where the largest logit is the label's, else 0. Logits: [1, b, classes] or [1, b / choices, choices].
 * With context parallelism only the first rank's results are valid. */
extern const HeadOps class_head;
