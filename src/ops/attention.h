/* Scaled dot-product attention. Megatron-LM core/transformer/dot_product_attention.py. */
#ifndef ISOTRON_OPS_ATTENTION_H
#define ISOTRON_OPS_ATTENTION_H

#include "kernels/attr.h"
#include "tape/tape.h"

/* q [s,b,g,r,d], k [t,b,g,1,d], v [t,b,g,1,e], all may be strided -> [s,b,g,r,e]: r query heads share the
 * kv head of their group. What a query sees is in AttentionAttr; first_key I64 [b,s] (NULL: 0) hides the keys
 * before it; a query that sees no key gets 0. `sink` [h] (NULL: none; heads of q from attr.first_sink on):
 * the logit of one key more for each head, which all queries see, with the value 0 and without dropout; a
 * parameter, or a tensor without a gradient (Megatron-LM --softmax-type). `unfused` materialises the
 * probabilities: the oracle, and slow. */
Tensor *op_attention(Tape *, Tensor *q, Tensor *k, Tensor *v, Tensor *first_key, Tensor *sink, AttentionAttr,
                     bool unfused);

/* ---- for builders that attend inside an op ----
 * A node's `call` has in: q, k, v, first_key, sink, out: y, and lse or all probabilities; its attr is an
 * AttentionAttr or begins with one. */

/* What is kept for the backward of attention to so many keys: lse [b,g,r,s], or all probabilities. */
Tensor *attention_kept(Tape *, const Tensor *q, int64_t keys, const Tensor *sink, bool unfused);
/* Computes the outputs. */
void attention_run(Tape *, const Call *call, bool unfused);
/* Makes y and lse of attention to all keys, which a ring has put together, those with the sinks. */
void attention_add_sinks(Tape *, const Call *call);

/* Where gradients of the inputs go; NULL: not needed. */
typedef struct AttentionGrads {
    Tensor *q, *k, *v, *sink;
} AttentionGrads;
AttentionGrads attention_grads_out(Tape *, const Call *call, Need);
static inline bool attention_grads_of_qkv(const AttentionGrads *g) { return g->q || g->k || g->v; }
/* Those of q, k and v by the call's keys; that of the sinks is another sum over rows, once for all keys. */
void attention_gradients(Tape *, const Call *call, bool unfused, Tensor *dy, AttentionGrads);

#endif
