/* Multi-head latent attention (DeepSeek-V2, 2024), like Megatron-LM core/transformer/multi_latent_attention.py.
 * Each token has a latent vector, from which its keys and values are projected up. A token's queries come from
 * another latent vector, or directly from the residual stream. Each query or key head consists of a part without
 * positions, followed by a rotated part. All heads share the rotated part of the key. */
#pragma once

#include "nn/attention.h"

typedef struct MlaSpec {
    /* Each group consists of one head. head_dim is the total width of a head's two parts. qk_norm normalizes
     * the latents. rope applies to the rotated part, in which pairs are adjacent channels. With `recompute`, the
     * backward pass recomputes the rotation and attention. qkv_bias is false. */
    AttentionSpec attention;
    /* width of the latent for queries; 0 if queries have neither a latent nor a norm */
    int64_t q_rank;
    /* widths of the latent for keys and values, of the rotated part, and of a value head */
    int64_t kv_rank, rotated, value;
    bool recompute_up; /* whether to recompute the up-projections, the rotation and attention */
    /* whether the cache stores latents and the shared part of the keys, instead of each head's keys and
     * values */
    bool caches_latents;
} MlaSpec;

typedef struct Mla {
    const MlaSpec *spec;
    const RopeTable *rope, *temperature; /* `temperature` is NULL if the model has no temperature */
    uint64_t dropout_site;
    Linear q_down, q, kv_down, kv,
        proj; /* q and kv are up-projections; q_down is not used if queries have no latent */
    Norm q_norm, kv_norm;
    Param *softmax_offset; /* as in Attention */
    Tensor *max;           /* as in Attention */
    QkClip clip;
} Mla;

/* The branch's module is an Mla, and its spec is an MlaSpec. */
extern const BranchOps mla_branch;
