/* BERT's heads. Masked language model: dense, activation, norm, output layer with bias. Sentences: the pooler, two
 * classes. Megatron-LM core/models/bert/{bert_lm_head,bert_model}.py. */
#ifndef ISOTRON_NN_BERT_HEAD_H
#define ISOTRON_NN_BERT_HEAD_H

#include "nn/feed.h"
#include "nn/head.h"
#include "nn/linear.h"
#include "nn/norm.h"

typedef struct BertHeadSpec {
    int64_t vocab, padded_vocab, hidden;
    double init_std;
    Activation activation;
    NormAttr norm;
    bool sentences; /* has the head for sentences */
} BertHeadSpec;

typedef struct BertHead {
    const BertHeadSpec *spec;
    Linear dense;
    Norm norm;
    Param *output, *output_bias;
    Linear pooler, classes; /* with sentences */
} BertHead;

/* How the names of parameters of heads begin, also of heads of tasks (class_head.h). Ends with NULL. */
extern const char *const BERT_HEADS[];
extern const HeadOps bert_head; /* the module is a BertHead, the spec a BertHeadSpec */
/* h [s, b, h] is the encoder's output. With labels in the feed, returns the loss of each token [b, s] in nats. Else
 * returns logits [s, b, padded vocabulary], V along the vocabulary over tensor-parallel ranks. */
Tensor *bert_token_loss(Tape *, const BertHead *, const Feed *, Tensor *h_sbh);
/* The loss of each sample's sentence label [b, 1], of this rank's first position: over context-parallel ranks only
 * the first rank's is the model's. */
Tensor *bert_sentence_loss(Tape *, const BertHead *, const Feed *, Tensor *h_sbh);

#endif
