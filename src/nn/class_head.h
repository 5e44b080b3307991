/* BERT's classification head: the pooler, dropout, and a linear layer. The head either classifies each sample (for
 * example, whether its sentences are in order) or chooses one of a question's answers, where each answer is a sample.
 * The head corresponds to Megatron-LM core/models/bert/bert_model.py, and to model/classification.py and
 * multiple_choice.py in Megatron-LM's tasks. */
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

/* The module is a ClassHead, and the spec is a ClassHeadSpec. The loss has one value per sample, [b, 1], or
 * per question, [b / choices, 1]. Labels are in the field sentence_labels. A question's label is its first choice's
 * label. The count has the same shape as the loss, and is 1 where the label has the largest logit, otherwise 0. The
 * logits are [1, b, classes] or [1, b / choices, choices]. With context parallelism, only the first rank's results are
 * valid. */
extern const HeadOps class_head;
