/* Scaled dot-product attention. Megatron-LM core/transformer/dot_product_attention.py. */
#pragma once

#include "kernels/attr.h"
#include "tape/tape.h"

/* q, k and v may be strided. r query heads share the key and value head of their group. */
typedef struct AttentionInputs {
    Tensor *q, *k, *v; /* [s,b,g,r,d], [t,b,g,1,d], [t,b,g,1,e] */
    bool
        exchanged; /* after context_exchange: q, k and v have all rows of the block, first_key has this rank's */
    Tensor *first_key; /* I64 [b,s]: the query does not see keys before this position; NULL means no such
                          limit */
    Tensor *lengths;   /* I64 [b]: number of keys; later ones are padding; NULL if there is no padding */
    /* [h]: for each head, the logit of an additional key, which all queries see. Its value is 0, and it has no dropout.
     * q's heads begin at element attr.first_local. The sinks are a parameter, or a tensor without a gradient
     * (Megatron-LM --softmax-type). NULL: none. */
    Tensor *sink;
    /* [buckets,h], heads as for sinks: a bias is added to each score. Its bucket depends on key position minus query
     * position (kernels/relative_buckets.h). The bias is a parameter, or NULL if there is no bias. It cannot
     * be combined with a softcap. */
    Tensor *bias;
    /* F64 [heads of the model]: a training step replaces each head's element by the head's largest visible
     * score before the cap, if that is larger. NULL: not needed. */
    Tensor *max;
} AttentionInputs;

/* Returns [s,b,g,r,e]. AttentionAttr defines which keys a query sees. The result is 0 for a query that sees no key.
 * With `unfused`, all probabilities are stored. This is slow, and serves as a reference. */
Tensor *op_attention(Tape *, const AttentionInputs *, AttentionAttr, bool unfused);

/* ---- for ops that contain attention ---- In a node's `call`, `in` has the inputs (attention_call), and `out` has y,
 * then lse or all probabilities. Its attr is an AttentionAttr or begins with one. */

Call attention_call(const AttentionInputs *, const void *attr);
/* Creates the outputs of a call, for attention to `keys` keys: y, and either lse [b,g,r,s] or all probabilities for the
 * backward. */
void attention_outputs(Tape *, Call *, int64_t keys, bool unfused);
/* Computes the outputs. */
void attention_run(Tape *, const Call *call, bool unfused);
/* Adds the sinks to y and lse, after a ring has merged its results for all keys. */
void attention_add_sinks(Tape *, const Call *call);

/* The destinations of the inputs' gradients, or NULL for those that are not needed. */
typedef struct AttentionGrads {
    Tensor *q, *k, *v, *bias, *sink;
} AttentionGrads;
AttentionGrads attention_grads_out(Tape *, const Call *call, Need);
/* Whether any needed gradient depends on the scores. */
static inline bool attention_grads_of_scores(const AttentionGrads *g) {
    return g->q || g->k || g->v || g->bias;
}
/* Computes the gradients for the call's keys. The gradient of the sinks is a separate sum over rows, which is computed
 * once per op, not once per step of a ring. */
void attention_gradients(Tape *, const Call *call, bool unfused, Tensor *dy, AttentionGrads);
