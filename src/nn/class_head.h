/* The head of a fine-tuned BERT: pooler, dropout, linear layer. It chooses one of the classes of a sample, or one of
 * the samples that are the choices of a question. Megatron-LM's tasks: model/classification.py, multiple_choice.py. */
#ifndef ISOTRON_NN_CLASS_HEAD_H
#define ISOTRON_NN_CLASS_HEAD_H

#include "nn/feed.h"
#include "nn/head.h"
#include "nn/linear.h"

typedef struct ClassHeadSpec {
    int64_t hidden;
    int64_t classes; /* of a sample; with choices not used */
    int64_t choices; /* of a question, each a sample; 1: samples have classes */
    double init_std, dropout;
} ClassHeadSpec;

typedef struct ClassHead {
    const ClassHeadSpec *spec;
    Linear pooler, output;
    uint64_t dropout_site;
} ClassHead;

extern const HeadOps class_head; /* the module is a ClassHead, the spec a ClassHeadSpec */
/* h [s, b, h], the encoder's output -> with sentence_labels in the feed the loss of each sample [b, 1] or question
 * [b / choices, 1] in nats, else logits [1, b, classes] or [1, b / choices, choices]. The label of a question is that of
 * its first choice. *correct: where the largest logit is the label's 1, else 0, in the losses' shape; NULL in training.
 * Over context-parallel ranks only the first rank's numbers are the model's. */
Tensor *class_loss(Tape *, const ClassHead *, const Feed *, Tensor *h_sbh, Tensor **correct);

#endif
