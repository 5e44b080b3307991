/* Scaled dot-product attention. Megatron-LM core/transformer/dot_product_attention.py. */
#ifndef ISOTRON_OPS_ATTENTION_H
#define ISOTRON_OPS_ATTENTION_H

#include "kernels/attr.h"
#include "tape/tape.h"

/* q [s,b,g,r,d], k [t,b,g,1,d], v [t,b,g,1,e], all may be strided -> [s,b,g,r,e]: r query heads share the
 * kv head of their group. What a query sees is in AttentionAttr; first_key I64 [b,s] (NULL: 0) hides the keys
 * before it; a query that sees no key gets 0. `unfused` materialises the probabilities: the oracle, and slow.
 */
Tensor *op_attention(Tape *, Tensor *q, Tensor *k, Tensor *v, Tensor *first_key, AttentionAttr, bool unfused);

/* For builders that attend inside an op: the gradients of the kernel's forward `call`, whose attr is an
 * AttentionAttr or begins with one. */
void attention_gradients(Tape *, const Call *call, bool unfused, Tensor *dy, Tensor *dq, Tensor *dk,
                         Tensor *dv);

#endif
