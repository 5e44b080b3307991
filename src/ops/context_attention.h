/* Attention over context-parallel ranks, each of which holds a zigzag slice of the sequence (base/zigzag.h).
 * Megatron-LM --cp-comm-type and Transformer Engine's attention with context parallelism. */
#ifndef ISOTRON_OPS_CONTEXT_ATTENTION_H
#define ISOTRON_OPS_CONTEXT_ATTENTION_H

#include "kernels/attr.h"
#include "tape/tape.h"

/* The ranks of the axis form blocks of `exchange` neighbours. A block exchanges sequence for heads (a2a).
 * Between the blocks keys and values go round a ring (p2p), or are gathered. p2p, allgather: exchange = 1;
 * a2a: exchange = cp; a2a+p2p: the first of --hierarchical-context-parallel-sizes. */
typedef struct ContextPlan {
    int exchange;
    bool gather;
} ContextPlan;

/* op_attention over all positions, whose rows are spread over the context-parallel ranks:
 *
 *   q [s,b,g,r,d], k [s,b,g,1,d], v [s,b,g,1,e] -> [s,b,g,r,e]; all V over CP
 *   first_key I64 [b,s], positions in the whole sequence, V over CP; or NULL
 *   sink: R over CP; or NULL
 *
 * Sets attr.query and attr.key; attr.first_head is that of q. An exchange over n ranks needs g to be a
 * multiple of n, or n to be a multiple of g and r of n / g. A ring needs the fused kernel. On one rank it is
 * op_attention. */
Tensor *op_context_attention(Tape *, Tensor *q, Tensor *k, Tensor *v, Tensor *first_key, Tensor *sink,
                             AttentionAttr, ContextPlan, bool unfused);

/* Attention between blocks. q, k, v, first_key as above, for the zigzag slice that this rank has in the
 * group. */
Tensor *context_ring(Tape *, Tensor *q, Tensor *k, Tensor *v, Tensor *first_key, Tensor *sink, AttentionAttr,
                     Group);
Tensor *context_gather(Tape *, Tensor *q, Tensor *k, Tensor *v, Tensor *first_key, Tensor *sink,
                       AttentionAttr, Group, bool unfused);

#endif
