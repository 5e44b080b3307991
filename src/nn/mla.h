/* Multi-head latent attention (DeepSeek-V2, 2024). Megatron-LM core/transformer/multi_latent_attention.py. Keys and
 * values are projected up from one latent vector of a token, and queries from another one, or directly from the
 * stream. A query head and a key head have a part without position and a rotated part, in this order. All heads share
 * the rotated part of the key. */
#pragma once

#include "nn/attention.h"

typedef struct MlaSpec {
    /* One group for each head; head_dim: of both parts together. qk_norm: norms of the latents. rope: of the rotated
     * part, in pairs of neighbours. recompute: the rotation and attention. No biases of q, k and v. */
    AttentionSpec attention;
    int64_t q_rank; /* width of the queries' latent; 0: queries without a latent, which have no norm */
    int64_t kv_rank, rotated, value; /* width of the other latent; of the rotated part; of a value head */
    bool recompute_up; /* recompute the projections from the latents, the rotation and attention */
} MlaSpec;

typedef struct Mla {
    const MlaSpec *spec;
    const RopeTable *rope;
    uint64_t dropout_site;
    Linear q_down, q, kv_down, kv, proj; /* q, kv: up from the latents. Without a latent q_down is unused */
    Norm q_norm, kv_norm;
    Param *softmax_offset; /* as in Attention */
} Mla;

/* The branch's module is an Mla, its spec an MlaSpec. */
extern const BranchOps mla_branch;
