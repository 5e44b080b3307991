/* Cross-attention: queries from the stream, keys and values from an encoder's output. Megatron-LM
 * core/transformer/attention.py, CrossAttention: the rows of linear_kv are grouped by head, each [k, v]. It has
 * no positions, and every query sees all keys of its sample. */
#pragma once

#include "nn/attention.h"

typedef struct CrossAttentionSpec {
    AttentionSpec
        attention; /* one group for each head; without rotation, norms of heads, sinks and windows */
    int64_t encoder_positions;
} CrossAttentionSpec;

typedef struct CrossAttention {
    const CrossAttentionSpec *spec;
    uint64_t dropout_site;
    Linear q, kv, proj;
} CrossAttention;

/* The branch's module is a CrossAttention, its spec a CrossAttentionSpec. It reads Feed.encoded. */
extern const BranchOps cross_attention_branch;
