/* Self-attention: a fused QKV projection, optional query and key norms, RoPE or relative positions, grouped-query
 * attention with optional sinks, an optional gate of each output, and an output projection. As in Megatron-LM
 * core/transformer/attention.py, the rows of linear_qkv are sorted by key/value group: [query heads of the group, their
 * gates, k, v]. The sinks correspond to softmax_offset in dot_product_attention.py. */
#pragma once

#include "nn/branch.h"
#include "nn/linear.h"
#include "nn/norm.h"
#include "nn/qk_clip.h"
#include "nn/rope.h"
#include "ops/context_attention.h"

/* The term that is added to the softmax denominator. */
typedef enum AttentionSink {
    SINK_NONE,
    SINK_ONE,    /* 1 */
    SINK_LEARNED /* exp(p), where p is a learned parameter for each query head */
} AttentionSink;

/* T5's relative position bias: each distance bucket has a bias that is added to the scores. All layers in a
 * stack share the biases. */
typedef struct RelativeSpec {
    const char *name; /* name of the bias parameter; NULL if there is no bias */
    int64_t buckets, max_distance;
    bool bidirectional; /* whether keys after the query have several distance buckets instead of one */
    double init_std;
} RelativeSpec;

typedef struct AttentionSpec {
    int64_t hidden, heads, groups, head_dim;
    bool qkv_bias, proj_bias, qk_norm, rotary_interleaved;
    bool gated;         /* whether each head's output is multiplied by the sigmoid of a gate */
    bool qk_norm_plain; /* whether the norm is an RMSNorm without a gain */
    bool qk_norm_last;  /* whether the norm follows the rotation */
    bool qk_norm_whole; /* whether one norm covers all heads; tensor-parallel ranks gather the heads first */
    NormAttr norm;
    bool qk_norm_decays;  /* --apply-wd-to-qk-layernorm */
    RopeSpec rope;        /* no rotation if its dim is 0 */
    RopeSpec temperature; /* factors by which query heads are scaled; none if its dim is 0 */
    RelativeSpec relative;
    double alibi;                                  /* AttentionAttr */
    int64_t window_left, window_right, chunk_size; /* AttentionAttr */
    AttentionSink sink;
    double scale;   /* factor by which the scores are scaled */
    double softcap; /* softcap applied to the scaled scores; 0 if there is none */
    QkClipSpec clip;
    double dropout, qkv_init_std, proj_init_std, softmax_init_std;
    QuantSpec quant; /* for both projections */
    ContextPlan context;
    bool unfused;   /* whether to store all scores, as a reference for the fused kernel */
    bool recompute; /* whether the backward pass recomputes the core (norms, rotation, attention) */
} AttentionSpec;

typedef struct Attention {
    const AttentionSpec *spec;
    const RopeTable *rope, *temperature; /* NULL if there is none */
    uint64_t dropout_site;
    Linear qkv, proj;
    Norm q_norm, k_norm;
    Param *softmax_offset; /* one element per query head; NULL unless the sinks are learned */
    Param *relative;       /* [buckets, query heads], or NULL if there is none */
    Tensor *max;           /* counters: the largest score per head in the model; NULL if not measured */
    QkClip clip;
} Attention;

/* ---- shared with cross-attention and latent attention ---- */

/* Registers a learned sink for each query head. Each tensor-parallel rank stores the sinks for its heads. */
Param *attention_offset_new(Registry *, const AttentionSpec *, const char *name);
/* Returns the sinks for this rank's heads, or NULL if there are none. The Param contains the learned sinks, or is
 * NULL. */
Tensor *attention_sinks(Tape *, const AttentionSpec *, Param *offset, DType);

/* Returns a view of heads [first, first + n) in each group. A row of x consists of `groups` groups of `all` heads, each
 * of width d. */
Tensor *attention_heads(Tape *, Tensor *x, int64_t groups, int64_t all, int64_t d, int64_t first, int64_t n);
/* Returns contiguous x [s, b, g, r, d] as [s, b, g*r*d]. */
Tensor *attention_flat_heads(Tape *, Tensor *x);
/* Returns the attributes for this rank's heads. `positions` is the number of queries or keys on this rank, whichever is
 * larger. */
AttentionAttr attention_attr(const Tape *, const AttentionSpec *, uint64_t dropout_site, int64_t positions);

/* Returns how many counters the branch has. The counters contain the largest scores. */
int64_t attention_counters(const AttentionSpec *);

/* The branch's module is an Attention, and its spec is an AttentionSpec. */
extern const BranchOps attention_branch;
