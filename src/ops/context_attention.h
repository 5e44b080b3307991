/* Attention over context-parallel ranks, each of which holds a zigzag slice of the sequence (base/zigzag.h).
 * The code corresponds to Megatron-LM's --cp-comm-type and Transformer Engine's attention with context
 * parallelism. */
#pragma once

#include "ops/attention.h"

/* The CP axis is divided into blocks of `exchange` consecutive ranks. Inside a block, an all-to-all changes the
 * sharding from sequence to heads (a2a). Between blocks, keys and values are passed around a ring (p2p) or
 * all-gathered. `exchange` is 1 for p2p and allgather, cp for a2a, and the first of
 * --hierarchical-context-parallel-sizes for a2a+p2p. */
typedef struct ContextPlan {
    int exchange;
    bool gather;
} ContextPlan;

/* Computes op_attention over all positions, which are sharded over the context-parallel ranks:
 *
 *   `q, k, v` and the result are V over CP. Queries and keys are slices of two sequences, which may differ in length.
 *   `first_key` contains positions among all keys, and is V over CP like the queries.
 *   `lengths`, `sink` and `bias` are R over CP.
 *
 * The op sets attr.query and attr.key. The caller sets attr.first_head for q. For an exchange over n ranks,
 * either g must be a multiple of n, or n must be a multiple of g and r a multiple of n / g. A ring requires the
 * fused kernel. On one rank, the op is the same as op_attention. */
Tensor *op_context_attention(Tape *, const AttentionInputs *, AttentionAttr, ContextPlan, bool unfused);
/* Exchanges queries, keys and values in one operation instead of three, before op_context_attention. qkv
 * [s,b,w] consists of g groups of heads, each with queries, a key and a value. The op changes qkv to
 * [n*s,b,g/n,w/(g*d),d]. If the plan has no exchange, or if g is not a multiple of n, returns false and leaves
 * qkv unchanged. */
bool context_exchange(Tape *, Tensor **qkv, int64_t g, int64_t d, ContextPlan);

/* Computes attention across the blocks of ranks. Takes op_context_attention's inputs for this rank's zigzag slices in
 * the group. */
Tensor *context_ring(Tape *, const AttentionInputs *, AttentionAttr, Group);
Tensor *context_gather(Tape *, const AttentionInputs *, AttentionAttr, Group, bool unfused);

/* One step of the ring: attention from rows [query, query + queries) of a rank's q to rows [key, key + keys) of another
 * rank's k and v. If `queries` is 0, no query attends to a key. */
typedef struct RingStep {
    AttentionAttr attr;
    int64_t query, queries, key, keys;
} RingStep;
/* Returns the step for zigzag slices of queries (attr.query) and keys (attr.key). If queries attend to keys
 * only inside one rectangle of chunks, with a causal mask or no mask, the step covers only this rectangle. The
 * step's attributes then have no slices, so that fused kernels can be used. The step covers all rows with
 * unchanged attributes if there is no such rectangle, or if positions determine more than the mask
 * (`by_position`). */
RingStep context_ring_step(const AttentionAttr *, bool by_position);
