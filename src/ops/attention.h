/* Scaled dot-product attention, like Megatron-LM core/transformer/dot_product_attention.py. */
#pragma once

#include "kernels/attr.h"
#include "tape/tape.h"

/* The operands of attention. q, k and v may be strided. The r query heads in a group share one key head and one
 * value head. */
typedef struct AttentionInputs {
    Tensor *q, *k, *v; /* [s,b,g,r,d], [t,b,g,1,d], [t,b,g,1,e] */
    /* whether context_exchange was called; if so, q, k and v have all rows in the block, but first_key has only
     * this rank's rows */
    bool exchanged;
    /* I64 [b,s]: the query does not attend to keys before this position; NULL if there is no such limit */
    Tensor *first_key;
    /* I64 [b]: number of keys before the padding; NULL if there is no padding */
    Tensor *lengths;
    /* [h]: for each head, the logit of an additional key, called a sink, to which all queries attend. A sink's
     * value is 0, and dropout does not apply to sinks. Element attr.first_local belongs to the first head of q.
     * The sinks are a parameter or a tensor without a gradient (Megatron-LM --softmax-type); NULL if there are
     * none. */
    Tensor *sink;
    /* [buckets,h]: a bias that is added to each score, with the same heads as `sink`. A score's bucket depends
     * on the key's position relative to the query's (kernels/relative_buckets.h). The bias is a parameter, or
     * NULL if there is no bias. A bias cannot be combined with a softcap. */
    Tensor *bias;
    /* F64 [heads of the model]: each head's running maximum of the unmasked scores before the cap. Training steps
     * update it. NULL if maxima are not measured. */
    Tensor *max;
} AttentionInputs;

/* Returns [s,b,g,r,e]. AttentionAttr defines the keys to which a query attends. The result is 0 for a query
 * that attends to no key. If `unfused` is true, all probabilities are stored; this method is slow, and serves as a
 * reference. */
Tensor *op_attention(Tape *, const AttentionInputs *, AttentionAttr, bool unfused);

/* ---- for ops that contain attention ---- In the `call` of a node, `in` contains the inputs (attention_call), and
 * `out` contains y, then lse or all probabilities. `attr` is an AttentionAttr or begins with one. */

Call attention_call(const AttentionInputs *, const void *attr);
/* Creates the outputs of a call for attention to `keys` keys: y and, for the backward pass, either lse
 * [b,g,r,s] or all probabilities. */
void attention_outputs(Tape *, Call *, int64_t keys, bool unfused);
/* Computes a call's outputs. */
void attention_run(Tape *, const Call *call, bool unfused);
/* Adds the sinks to y and lse, after a ring has merged its results for all keys. */
void attention_add_sinks(Tape *, const Call *call);

/* The tensors for the inputs' gradients. A gradient that is not needed is NULL. */
typedef struct AttentionGrads {
    Tensor *q, *k, *v, *bias, *sink;
} AttentionGrads;
AttentionGrads attention_grads_out(Tape *, const Call *call, Need);
/* Returns whether any needed gradient depends on the scores. */
static inline bool attention_grads_of_scores(const AttentionGrads *g) {
    return g->q || g->k || g->v || g->bias;
}
/* Computes the gradients for the call's keys. The sinks' gradient is a separate sum over rows, which is
 * computed once per op instead of once per step of a ring. */
void attention_gradients(Tape *, const Call *call, bool unfused, Tensor *dy, AttentionGrads);
