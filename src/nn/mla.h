/* Multi-head latent attention (DeepSeek-V2, 2024). Megatron-LM core/transformer/multi_latent_attention.py. Each token
 * has a latent vector, from which its keys and values are projected up. Its queries come from another latent vector, or
 * directly from the residual stream. Each query head and key head has a part without positions, then a rotated part.
 * All heads share the rotated part of the key. */
#pragma once

#include "nn/attention.h"

typedef struct MlaSpec {
    /* Each head is a group. head_dim is the width of both parts together. qk_norm normalizes the latents. rope applies
     * to the rotated part, whose pairs are adjacent channels. recompute includes the rotation and attention. qkv_bias
     * is false. */
    AttentionSpec attention;
    int64_t q_rank;                  /* width of the queries' latent, or 0 if queries have no latent and no
                                        norm */
    int64_t kv_rank, rotated, value; /* widths of the other latent, the rotated part and a value head */
    bool recompute_up;               /* whether the up-projections, the rotation and attention are
                                        recomputed */
    bool caches_latents; /* whether a cache has latents with the shared part of keys, instead of the keys and
                           values of each head */
} MlaSpec;

typedef struct Mla {
    const MlaSpec *spec;
    const RopeTable *rope, *temperature; /* temperature: NULL if there is none */
    uint64_t dropout_site;
    Linear q_down, q, kv_down, kv,
        proj; /* q, kv: up-projections. q_down is unused if queries have no latent */
    Norm q_norm, kv_norm;
    Param *softmax_offset; /* as in Attention */
    Tensor *max;           /* as in Attention */
    QkClip clip;
} Mla;

/* The module of the branch is an Mla, and its spec is an MlaSpec. */
extern const BranchOps mla_branch;
