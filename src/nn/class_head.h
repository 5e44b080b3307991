/* BERT's classification head: the pooler, dropout, and a linear layer. The head classifies each sample (for example, by
 * whether its sentences are in order), or chooses among a question's answers, each of which is a sample. The head
 * corresponds to Megatron-LM core/models/bert/bert_model.py, and to model/classification.py and multiple_choice.py in
 * Megatron-LM's tasks. */
#pragma once

#include "nn/head.h"
#include "nn/linear.h"

typedef struct ClassHeadSpec {
    const char *name; /* name of the linear layer */
    int64_t hidden;
    int64_t classes; /* number of classes; not used if choices > 1 */
    int64_t choices; /* number of answer choices per question, one sample each; 1 to classify samples */
    double init_std, dropout;
    bool counts; /* whether evaluations also count the correct answers */
} ClassHeadSpec;

typedef struct ClassHead {
    const ClassHeadSpec *spec;
    Linear pooler, output;
    uint64_t dropout_site;
} ClassHead;

/* The module is a ClassHead, and the spec is a ClassHeadSpec. The loss is [b, 1], with one value per sample, or [b /
 * choices, 1], with one value per question. Labels are in the field sentence_labels. A question's label is its first
 * choice's label. The count has the loss's shape; it is 1 where the label has the largest logit, and 0 elsewhere. The
 * logits are [1, b, classes] or [1, b / choices, choices]. With context parallelism, only the first rank's results are
 * valid. */
extern const HeadOps class_head;
