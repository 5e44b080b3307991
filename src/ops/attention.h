/* Scaled dot-product attention. Megatron-LM core/transformer/dot_product_attention.py. */
#pragma once

#include "kernels/attr.h"
#include "tape/tape.h"

/* q, k and v may be strided. r query heads share the kv head of their group. */
typedef struct AttentionInputs {
    Tensor *q, *k, *v; /* [s,b,g,r,d], [t,b,g,1,d], [t,b,g,1,e] */
    bool
        exchanged; /* q, k, v: all rows of the block, some heads (context_exchange); first_key: this rank's rows */
    Tensor *first_key; /* I64 [b,s]: hides keys at earlier positions from the query; NULL: none */
    Tensor *lengths;   /* I64 [b]: hides keys at this position and later ones (padding); NULL: none */
    /* [h], heads of q starting at attr.first_local: the logit of one more key per head, which all queries see,
     * with value 0 and without dropout. The sink is a parameter, or a tensor without a gradient (Megatron-LM
     * --softmax-type). NULL: none. */
    Tensor *sink;
    /* [buckets,h], heads as for sinks: each score gets the bias of a bucket (kernels/relative_buckets.h), chosen by key
     * position minus query position. The bias is a parameter; NULL: none. Not with a soft cap. */
    Tensor *bias;
} AttentionInputs;

/* -> [s,b,g,r,e]. AttentionAttr defines which keys a query sees. A query that sees no key gets 0.
 * `unfused` materialises the probabilities: slow, for reference. */
Tensor *op_attention(Tape *, const AttentionInputs *, AttentionAttr, bool unfused);

/* ---- for builders that attend inside an op ----
 * A node's `call` has in: the inputs (attention_call), out: y, and lse or all probabilities; its attr is an
 * AttentionAttr or begins with one. */

Call attention_call(const AttentionInputs *, const void *attr);
/* Creates the outputs of a call, for attention to `keys` keys: y, and either lse [b,g,r,s] or all probabilities for the
 * backward. */
void attention_outputs(Tape *, Call *, int64_t keys, bool unfused);
/* Computes the outputs. */
void attention_run(Tape *, const Call *call, bool unfused);
/* Adds the sinks to y and lse of attention to all keys, for a ring that has merged them. */
void attention_add_sinks(Tape *, const Call *call);

/* The destinations of the inputs' gradients; NULL: not needed. */
typedef struct AttentionGrads {
    Tensor *q, *k, *v, *bias, *sink;
} AttentionGrads;
AttentionGrads attention_grads_out(Tape *, const Call *call, Need);
/* Whether any needed gradient depends on the scores. */
static inline bool attention_grads_of_scores(const AttentionGrads *g) {
    return g->q || g->k || g->v || g->bias;
}
/* Computes the gradients for the call's keys. The gradient of the sinks is a separate sum over rows, computed
 * once per call of the op. */
void attention_gradients(Tape *, const Call *call, bool unfused, Tensor *dy, AttentionGrads);
