/* Self-attention: fused QKV projection, optional norm of queries and keys, RoPE, grouped-query attention with
 * optional sinks, output projection. Megatron-LM core/transformer/attention.py: the rows of linear_qkv are
 * grouped by kv group, each [its query heads, k, v]. Sinks: dot_product_attention.py, softmax_offset. */
#ifndef ISOTRON_NN_ATTENTION_H
#define ISOTRON_NN_ATTENTION_H

#include "nn/branch.h"
#include "nn/linear.h"
#include "nn/norm.h"
#include "nn/rope.h"
#include "ops/context_attention.h"

/* A term that is added to the denominator of the softmax. */
typedef enum AttentionSink {
    SINK_NONE,
    SINK_ONE,    /* 1 */
    SINK_LEARNED /* exp of a parameter of each query head */
} AttentionSink;

typedef struct AttentionSpec {
    int layer; /* index into the KV cache */
    int64_t hidden, heads, groups, head_dim;
    bool qkv_bias, proj_bias, qk_norm, rotary_interleaved;
    bool qk_norm_whole; /* over all heads together; tensor-parallel ranks gather them for it */
    NormAttr norm;
    bool qk_norm_decays; /* --apply-wd-to-qk-layernorm */
    RopeSpec rope;       /* dim 0: no rotation */
    int64_t window_left, window_right;
    AttentionSink sink;
    double scale;   /* of the scores */
    double softcap; /* of the scaled scores; 0: none */
    double dropout, qkv_init_std, proj_init_std, softmax_init_std;
    QuantSpec quant; /* of both projections */
    ContextPlan context;
    bool unfused;   /* materialise the scores: the reference of the fused kernel */
    bool recompute; /* recompute the core (norms, rotation, attention) in the backward */
} AttentionSpec;

typedef struct Attention {
    const AttentionSpec *spec;
    const RopeTable *rope;
    uint64_t dropout_site;
    Linear qkv, proj;
    Norm q_norm, k_norm;
    Param *softmax_offset; /* one per query head; NULL unless learned */
} Attention;

/* The branch's module is an Attention, its spec an AttentionSpec. */
extern const BranchOps attention_branch;

#endif
