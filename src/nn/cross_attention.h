/* Cross-attention: queries come from the residual stream, keys and values from an encoder's output. As in
 * CrossAttention of Megatron-LM core/transformer/attention.py, the rows of linear_kv are sorted by head: [k, v].
 * Positions are not encoded, and every query attends to all keys of its sample. */
#pragma once

#include "nn/attention.h"

typedef struct CrossAttentionSpec {
    AttentionSpec attention; /* one group per head; there is no rotation, query or key norm, sink or window */
    int64_t encoder_positions;
} CrossAttentionSpec;

typedef struct CrossAttention {
    const CrossAttentionSpec *spec;
    uint64_t dropout_site;
    Linear q, kv, proj;
} CrossAttention;

/* The branch's module is a CrossAttention, and its spec is a CrossAttentionSpec. The branch reads Feed.encoded. */
extern const BranchOps cross_attention_branch;
