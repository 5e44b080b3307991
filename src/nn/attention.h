/* Self-attention: a fused QKV projection, optional norms of queries and keys, RoPE or relative positions,
 * grouped-query attention with optional sinks, and an output projection. As in Megatron-LM
 * core/transformer/attention.py, the rows of linear_qkv are sorted by key/value group: [query heads of the
 * group, k, v]. The sinks are softmax_offset of dot_product_attention.py. */
#pragma once

#include "nn/branch.h"
#include "nn/linear.h"
#include "nn/norm.h"
#include "nn/qk_clip.h"
#include "nn/rope.h"
#include "ops/context_attention.h"

/* The term that is added to the denominator of the softmax. */
typedef enum AttentionSink {
    SINK_NONE,
    SINK_ONE,    /* 1 */
    SINK_LEARNED /* exp of a learned parameter, one for each query head */
} AttentionSink;

/* T5's relative position bias: each bucket of distances has a bias that is added to the scores. All layers of a stack
 * share it. */
typedef struct RelativeSpec {
    const char *name; /* name of the bias parameter; NULL if there is no bias */
    int64_t buckets, max_distance;
    bool bidirectional; /* if false, all keys after the query share one bucket */
    double init_std;
} RelativeSpec;

typedef struct AttentionSpec {
    int64_t hidden, heads, groups, head_dim;
    bool qkv_bias, proj_bias, qk_norm, rotary_interleaved;
    bool qk_norm_plain; /* the norm is an RMSNorm without a gain */
    bool qk_norm_last;  /* the norm follows the rotation */
    bool qk_norm_whole; /* one norm over all heads, which tensor-parallel ranks gather first */
    NormAttr norm;
    bool qk_norm_decays;  /* --apply-wd-to-qk-layernorm */
    RopeSpec rope;        /* no rotation if its dim is 0 */
    RopeSpec temperature; /* factors of the query heads; none if its dim is 0 */
    RelativeSpec relative;
    double alibi;                                  /* AttentionAttr */
    int64_t window_left, window_right, chunk_size; /* AttentionAttr */
    AttentionSink sink;
    double scale;   /* factor of the scores */
    double softcap; /* softcap of the scaled scores; 0 if there is none */
    QkClipSpec clip;
    double dropout, qkv_init_std, proj_init_std, softmax_init_std;
    QuantSpec quant; /* for both projections */
    ContextPlan context;
    bool unfused;   /* all scores are stored; this is the reference for the fused kernel */
    bool recompute; /* the core (norms, rotation, attention) is recomputed in the backward */
} AttentionSpec;

typedef struct Attention {
    const AttentionSpec *spec;
    const RopeTable *rope, *temperature; /* NULL if there is none */
    uint64_t dropout_site;
    Linear qkv, proj;
    Norm q_norm, k_norm;
    Param *softmax_offset; /* one element per query head; NULL unless the sinks are learned */
    Param *relative;       /* [buckets, query heads], or NULL if there is none */
    Tensor *max;           /* counters of the largest score of each head of the model; NULL if not measured */
    QkClip clip;
} Attention;

/* ---- shared with cross-attention and latent attention ---- */

/* Registers a learned sink for each query head. Each tensor-parallel rank stores the sinks of its heads. */
Param *attention_offset_new(Registry *, const AttentionSpec *, const char *name);
/* Returns the sinks of this rank's heads, or NULL if there are none. The Param contains learned sinks, or is NULL. */
Tensor *attention_sinks(Tape *, const AttentionSpec *, Param *offset, DType);

/* Returns a view of heads [first, first + n) of each group. A row of x has `groups` groups of `all` heads of width
 * d. */
Tensor *attention_heads(Tape *, Tensor *x, int64_t groups, int64_t all, int64_t d, int64_t first, int64_t n);
/* Returns contiguous x [s, b, g, r, d] as [s, b, g*r*d]. */
Tensor *attention_flat_heads(Tape *, Tensor *x);
/* Returns the attributes for this rank's heads. `positions` is the larger of the numbers of queries and of keys on
 * this rank. */
AttentionAttr attention_attr(const Tape *, const AttentionSpec *, uint64_t dropout_site, int64_t positions);

/* Returns the number of counters of the branch. The counters contain the largest scores. */
int64_t attention_counters(const AttentionSpec *);

/* The module of the branch is an Attention, and its spec is an AttentionSpec. */
extern const BranchOps attention_branch;
