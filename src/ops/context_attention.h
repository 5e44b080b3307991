/* Attention over context-parallel ranks, each of which holds a zigzag slice of the sequence (base/zigzag.h).
 * Megatron-LM --cp-comm-type and Transformer Engine's attention with context parallelism. */
#pragma once

#include "ops/attention.h"

/* The ranks of the axis form blocks of `exchange` neighbours. Inside a block, ranks exchange sequence for heads (a2a).
 * Between the blocks, keys and values travel around a ring (p2p), or are gathered. p2p, allgather: exchange = 1; a2a:
 * exchange = cp; a2a+p2p: the first of --hierarchical-context-parallel-sizes. */
typedef struct ContextPlan {
    int exchange;
    bool gather;
} ContextPlan;

/* op_attention over all positions, whose rows are spread over the context-parallel ranks:
 *
 *   q, k, v, the result: V over CP. Queries and keys are slices of two sequences, whose lengths may differ.
 *   first_key: positions among all keys, V over CP with the queries
 *   lengths, sink, bias: R over CP
 *
 * Sets attr.query and attr.key; attr.first_head is that of q. An exchange over n ranks needs g to be a
 * multiple of n, or n to be a multiple of g and r of n / g. A ring needs the fused kernel. On one rank it is
 * op_attention. */
Tensor *op_context_attention(Tape *, const AttentionInputs *, AttentionAttr, ContextPlan, bool unfused);
/* Exchanges queries, keys and values in one operation instead of three, before op_context_attention. qkv [s,b,w] has
 * g groups of heads, each with its queries, key and value, and becomes [n*s,b,g/n,w/(g*d),d]. Returns false and leaves
 * qkv unchanged if the plan has no exchange or n does not divide g. */
bool context_exchange(Tape *, Tensor **qkv, int64_t g, int64_t d, ContextPlan);

/* Attention between blocks. The inputs are as above, for this rank's zigzag slices in the group. */
Tensor *context_ring(Tape *, const AttentionInputs *, AttentionAttr, Group);
Tensor *context_gather(Tape *, const AttentionInputs *, AttentionAttr, Group, bool unfused);

/* The work of a rank for the keys of one rank of the ring: attention of rows [query, query + queries) of q to
 * rows [key, key + keys) of k and v. queries = 0: no query sees a key. */
typedef struct RingStep {
    AttentionAttr attr;
    int64_t query, queries, key, keys;
} RingStep;
/* attr has the zigzag slices of the queries and of the keys. If attention inside a rectangle of chunks has no mask or
 * is plainly causal, and no query outside of it sees a key, returns that rectangle. attr.query and attr.key are then
 * without chunks, so that fused kernels can be used. Otherwise, and if results depend on positions other than through
 * the mask (`by_position`), the step has all rows and the attr is unchanged. */
RingStep context_ring_step(const AttentionAttr *, bool by_position);
