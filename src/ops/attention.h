/* Scaled dot-product attention. Megatron-LM core/transformer/dot_product_attention.py. */
#ifndef ISOTRON_OPS_ATTENTION_H
#define ISOTRON_OPS_ATTENTION_H

#include "kernels/attr.h"
#include "tape/tape.h"

/* q [s,b,g,r,d], k [t,b,g,1,d], v [t,b,g,1,e], all may be strided -> [s,b,g,r,e]: r query heads share the kv
 * head of their group.
 *
 * AttentionAttr defines which keys a query sees. first_key I64 [b,s] (NULL: 0) hides earlier keys. A query
 * that sees no key gets 0. `sink` [h] (NULL: none; heads of q starting at attr.first_sink) is the logit of
 * one more key per head, which all queries see, with value 0 and without dropout. It is a parameter, or a
 * tensor without a gradient (Megatron-LM --softmax-type). `unfused` materialises the probabilities: slow, for
 * reference. */
Tensor *op_attention(Tape *, Tensor *q, Tensor *k, Tensor *v, Tensor *first_key, Tensor *sink, AttentionAttr,
                     bool unfused);

/* ---- for builders that attend inside an op ----
 * A node's `call` has in: q, k, v, first_key, sink, out: y, and lse or all probabilities; its attr is an
 * AttentionAttr or begins with one. */

/* The tensor that is kept for the backward of attention to `keys` keys: lse [b,g,r,s], or all
 * probabilities. */
Tensor *attention_kept(Tape *, const Tensor *q, int64_t keys, const Tensor *sink, bool unfused);
/* Computes the outputs. */
void attention_run(Tape *, const Call *call, bool unfused);
/* Adds the sinks to y and lse of attention to all keys, for a ring that has merged them. */
void attention_add_sinks(Tape *, const Call *call);

/* The destinations of the inputs' gradients; NULL: not needed. */
typedef struct AttentionGrads {
    Tensor *q, *k, *v, *sink;
} AttentionGrads;
AttentionGrads attention_grads_out(Tape *, const Call *call, Need);
static inline bool attention_grads_of_qkv(const AttentionGrads *g) { return g->q || g->k || g->v; }
/* Computes the gradients of q, k and v for the call's keys. The gradient of the sinks is a separate sum over
 * rows, computed once per call of the op. */
void attention_gradients(Tape *, const Call *call, bool unfused, Tensor *dy, AttentionGrads);

#endif
