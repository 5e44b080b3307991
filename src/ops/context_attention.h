/* Attention over context-parallel ranks, each of which holds a zigzag slice of the sequence (base/zigzag.h).
 * Megatron-LM --cp-comm-type and Transformer Engine's attention with context parallelism. */
#ifndef ISOTRON_OPS_CONTEXT_ATTENTION_H
#define ISOTRON_OPS_CONTEXT_ATTENTION_H

#include "kernels/attr.h"
#include "tape/tape.h"

/* The ranks of the axis are blocks of `exchange` neighbours. A block exchanges sequence for heads (a2a);
 * between the blocks keys and values go round a ring (p2p), or are gathered. p2p, allgather: exchange = 1;
 * a2a: exchange = cp; a2a+p2p: the first of --hierarchical-context-parallel-sizes. */
typedef struct ContextPlan {
    int exchange;
    bool gather;
} ContextPlan;

/* op_attention of the whole sequence, of which this rank has rows: q [s,b,g,r,d], k [s,b,g,1,d],
 * v [s,b,g,1,e], first_key I64 [b,s] (positions in the whole sequence) or NULL -> [s,b,g,r,e], all V over CP;
 * sink or NULL, R over CP. attr.query and attr.key are set here, attr.first_head is that of q. An exchange
 * needs g to be a multiple of its ranks, or its ranks n of g and r of n / g. A ring needs the fused kernel.
 * Without context-parallel ranks it is op_attention. */
Tensor *op_context_attention(Tape *, Tensor *q, Tensor *k, Tensor *v, Tensor *first_key, Tensor *sink,
                             AttentionAttr, ContextPlan, bool unfused);

/* The ways between blocks: q, k, v, first_key as above, of group rank r's zigzag slice of all members'. */
Tensor *context_ring(Tape *, Tensor *q, Tensor *k, Tensor *v, Tensor *first_key, Tensor *sink, AttentionAttr,
                     Group);
Tensor *context_gather(Tape *, Tensor *q, Tensor *k, Tensor *v, Tensor *first_key, Tensor *sink,
                       AttentionAttr, Group, bool unfused);

#endif
