/* Self-attention: fused QKV projection, optional norm of queries and keys, RoPE or relative positions, grouped-query
 * attention with optional sinks, output projection. Megatron-LM core/transformer/attention.py: the rows of linear_qkv
 * are grouped by kv group, each [its query heads, k, v]. Sinks: dot_product_attention.py, softmax_offset. */
#pragma once

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

/* A bias of the scores for each bucket of distances. The layers of a stack share it. */
typedef struct RelativeSpec {
    const char *name; /* name of the bias parameter; NULL: no bias */
    int64_t buckets, max_distance;
    bool bidirectional; /* else all later keys share one bucket */
    double init_std;
} RelativeSpec;

typedef struct AttentionSpec {
    int64_t hidden, heads, groups, head_dim;
    bool qkv_bias, proj_bias, qk_norm, rotary_interleaved;
    bool qk_norm_whole; /* one norm over all heads, which tensor-parallel ranks gather first */
    NormAttr norm;
    bool qk_norm_decays; /* --apply-wd-to-qk-layernorm */
    RopeSpec rope;       /* dim 0: no rotation */
    RelativeSpec relative;
    int64_t window_left, window_right;
    AttentionSink sink;
    double scale;   /* factor of the scores */
    double softcap; /* softcap of the scaled scores; 0: none */
    double dropout, qkv_init_std, proj_init_std, softmax_init_std;
    QuantSpec quant; /* for both projections */
    ContextPlan context;
    bool unfused;   /* materialise the scores; the reference for the fused kernel */
    bool recompute; /* recompute the core (norms, rotation, attention) in the backward */
} AttentionSpec;

typedef struct Attention {
    const AttentionSpec *spec;
    const RopeTable *rope;
    uint64_t dropout_site;
    Linear qkv, proj;
    Norm q_norm, k_norm;
    Param *softmax_offset; /* one per query head; NULL unless learned */
    Param *relative;       /* [buckets, query heads]; NULL: none */
} Attention;

/* ---- shared with cross-attention and latent attention ---- */

/* A learned sink for each query head, split like the rows of its projection: a rank has those of its heads. */
Param *attention_offset_new(Registry *, const AttentionSpec *, const char *name);
/* The sinks of this rank's heads; offset: the learned ones. NULL: none. */
Tensor *attention_sinks(Tape *, const AttentionSpec *, Param *offset, DType);
/* Writes x [s, b, ...] after the `length` positions of a cache, and returns all of them. */
Tensor *attention_append(Tape *, Tensor *cache, int64_t length, Tensor *x);

/* Heads [first, first + n) of each group of x; a row of x is `groups` groups of `all` heads of d. */
Tensor *attention_heads(Tape *, Tensor *x, int64_t groups, int64_t all, int64_t d, int64_t first, int64_t n);
/* Contiguous x [s, b, g, r, d] -> [s, b, g*r*d] */
Tensor *attention_flat_heads(Tape *, Tensor *x);
/* The attributes for this rank's heads; positions: the larger number of queries or keys that this rank holds. */
AttentionAttr attention_attr(const Tape *, const AttentionSpec *, uint64_t dropout_site, int64_t positions);

/* The branch's module is an Attention, its spec an AttentionSpec. */
extern const BranchOps attention_branch;
