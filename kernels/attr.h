/* The attributes of the ops, that is, the kernel inputs that are not tensors. Each op with attributes has one
 * struct; kernels/ops.def lists the ops with their operands. Attribute structs contain no pointers, because
 * the tape copies them. */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/zigzag.h"
#include "kernels/fp8_blocks.h"
#include "tensor/dtype.h"
#include "tensor/fp8.h"

typedef enum Activation {
    ACT_GELU_TANH,
    ACT_GELU_ERF,
    ACT_QUICK_GELU,
    ACT_SQUARED_RELU,
    ACT_RELU,
    ACT_TANH,
    ACT_XIELU, /* xIELU has parameters, so only ops/xielu.h computes it */
    /* Gated: the input is [..., gate | up], and the output act(gate) * up is half as wide. */
    ACT_SWIGLU, /* SwiGLU: act is SiLU */
    ACT_GEGLU_TANH,
    ACT_GEGLU_ERF,
    ACT_QUICK_GEGLU,
} Activation;
static inline bool activation_is_gated(Activation a) { return a >= ACT_SWIGLU; }
/* A gated activation computes y = act(min(gate, limit)) * (min(max(up, -limit), limit) + offset). */
typedef struct ActivationAttr {
    Activation kind;
    double limit; /* 0 if there is no limit */
    double offset;
} ActivationAttr;

typedef struct LinearAttr {
    /* If true, the order in which an element's terms are added does not depend on the number of rows and
     * columns. Each element of a weight's gradient is then one chain of multiply-adds in row order. */
    bool fixed_order;
    /* linear_wgrad with fixed_order: if true, a GPU may add the sums of chunks of rows, which is much faster for a layer
     * with few outputs */
    bool by_chunks;
    /* linear: if true, no op has written the weight since the weight was last copied to the device, so a GPU
     * can read it while earlier ops run */
    bool steady;
    Activation activation; /* the activation that computes `act` from y, or x from `pre`; must not be gated */
} LinearAttr;

typedef struct LinearHeadsAttr {
    bool fixed_order; /* as in LinearAttr */
    bool transposed;  /* if true, the weights are [h,i,o] */
} LinearHeadsAttr;

typedef struct Fp8ScaleAttr {
    double largest; /* the FP8 value to which the scale maps the amax (the largest |x|) */
    /* fp8_scale: if true, the scale is computed from this step's amax; if false, from the largest of all n amaxes. An
     * amax that is 0 or not finite leaves the scale unchanged. */
    bool most_recent;
} Fp8ScaleAttr;

typedef struct QuantizeAttr {
    Fp8Type type;
    /* The size of a block, if each block has a scale. The scales of blocks are powers of two. Rows are counted as in
     * tensor_rows. */
    int64_t rows, columns;
} QuantizeAttr;

typedef struct Fp8CastAttr {
    Fp8Blocks blocks; /* with FP8_WHOLE, the state contains the scale */
    int64_t matrices; /* fp8_cast: the number g of matrices in x; 0 means 1 */
} Fp8CastAttr;

/* Selects elements [first, first + n) of a row-major weight [matrices * rows, columns]; n is the operand's number of
 * elements. */
typedef struct Fp8PartAttr {
    int64_t matrices, rows, columns, first;
    Fp8Blocks blocks; /* FP8_WHOLE or FP8_SQUARES */
    DType rounded;    /* x is rounded to this type before it is cast */
} Fp8PartAttr;

typedef struct Fp8GemmAttr {
    Fp8Blocks a, b; /* at most one operand has FP8_SQUARES */
    /* if true, accumulators may be less precise than fp32: Hopper's tensor cores keep about 14 bits */
    bool fast;
    /* experts only: sums are fp32, in an order that depends only on the sizes */
    bool fixed_order;
    Activation activation; /* the activation that computes the output `act`; must not be gated */
} Fp8GemmAttr;

typedef struct NormAttr {
    bool rms;      /* if true, RMSNorm (no mean, no bias); otherwise LayerNorm */
    bool no_gain;  /* if true, the gain is not a parameter, and the kernels read a gain of ones */
    bool no_bias;  /* if true, LayerNorm has no bias, and the kernels do not read one */
    bool one_plus; /* if true, the gain is stored as w and applied as 1 + w (--apply-layernorm-1p) */
    double eps;
} NormAttr;

enum { CONV_TAPS = 8 }; /* maximum number of taps of causal_conv */

typedef struct ScanAttr {
    int64_t groups, head_dim, state; /* the widths of a head and of a state are head_dim and `state` */
    int64_t chunk;                   /* number of positions per chunk, which affects only rounding */
    double least, most;              /* limits of a step; 0 and HUGE_VAL are no limits */
} ScanAttr;

typedef struct DeltaRuleAttr {
    int64_t key_heads, key_dim, value_dim; /* consecutive value heads share a key head */
    int64_t chunk;                         /* number of positions per chunk, which affects only rounding */
    bool normalize;                        /* if true, each head's q and k are divided by their L2 norms */
    double eps;                            /* added to the norm's sum of squares */
} DeltaRuleAttr;

typedef struct GatedNormAttr {
    int64_t groups; /* number of groups of channels that are normalized separately */
    double eps;
} GatedNormAttr;

typedef struct GateAttr {
    bool silu; /* whether the gate is SiLU(z) instead of sigmoid(z) */
} GateAttr;

typedef struct RopeAttr {
    int32_t dim;      /* number of leading elements of each head that are rotated; even */
    bool interleaved; /* if true, the pairs are (2i, 2i+1); otherwise (i, i + dim/2) */
    bool inverse;     /* if true, rotates in the opposite direction, as in the backward pass */
} RopeAttr;

/* The attributes of dropout and jitter. Random numbers depend on global indices (base/philox.h). Dropout keeps
 * element i of `site` if philox_u32(seed, site, i) >= rate * 2^32, and multiplies kept elements by 1 / (1 -
 * rate). For jitter, `rate` is the largest difference between a factor and 1. */
typedef struct DropoutAttr {
    double rate;
    uint64_t seed, site;
    int64_t first_sample; /* index of the microbatch's first sample, counted over the entire run */
    int64_t seq_total;    /* length of the full sequence */
    SequenceSlice slice;  /* the part of the sequence that this tensor's rows contain */
} DropoutAttr;

typedef enum RouterScore {
    ROUTER_TOPK_SOFTMAX, /* a softmax over only the selected experts */
    /* a softmax over all experts, so the selected experts' probabilities do not sum to 1 */
    ROUTER_SOFTMAX,
    ROUTER_SIGMOID,      /* s = sigmoid(logit); if topk > 1, s / (sum of the selected experts' s + 1e-20) */
    ROUTER_SQRTSOFTPLUS, /* s = sqrt(log(1 + exp(logit))), normalized like ROUTER_SIGMOID */
    /* for each selected expert, its softmax probability among the experts with similar logits that were not
     * selected earlier */
    ROUTER_SPARSEMIXER,
} RouterScore;
/* The values by which experts are ranked. Biases are added to these values. */
typedef enum RouterOrder {
    ORDER_SCORES,
    ORDER_LOGITS,
    ORDER_SOFTMAX, /* the softmax over all experts; only with ROUTER_TOPK_SOFTMAX */
} RouterOrder;
typedef struct RouteAttr {
    RouterScore score;
    /* Experts are divided into `groups` groups, and only experts in the best group_topk groups can be
     * selected. A group's score is the sum of its `group_scores` best scores. If groups <= 1, any expert can
     * be selected. */
    int64_t groups, group_topk, group_scores;
    double scaling; /* factor by which probabilities are multiplied */
    /* ROUTER_SPARSEMIXER: logit x is similar to a selected expert's logit c if c - x <= band max(|x|, c) */
    double band;
    RouterOrder order;
} RouteAttr;

typedef enum RandomLogits {
    RANDOM_NONE,
    RANDOM_REPLACES,      /* replaces every logit with a random number */
    RANDOM_BIASES_SAMPLE, /* for each sample, adds one random vector to the logits of all its tokens */
    /* draws one random vector per layer, and adds it to all tokens' logits in every step */
    RANDOM_BIASES_LAYER,
} RandomLogits;
typedef struct RandomLogitsAttr {
    RandomLogits kind;
    double std;        /* standard deviation of the normally distributed random numbers */
    DropoutAttr index; /* the values that determine a random number; `rate` is not used */
} RandomLogitsAttr;

/* Returns the index of the random number for expert 0 in a row of the logits [s, samples, experts]. */
HOST_DEVICE static inline int64_t random_logits_first(const RandomLogitsAttr *a, int64_t row, int64_t samples,
                                                      int64_t experts) {
    const int64_t sample = a->index.first_sample + row % samples;
    if (a->kind == RANDOM_BIASES_LAYER) return 0;
    if (a->kind == RANDOM_BIASES_SAMPLE) return sample * experts;
    return (sample * a->index.seq_total + slice_position(&a->index.slice, row / samples)) * experts;
}

typedef enum RouterLossKind { ROUTER_BALANCE, ROUTER_Z } RouterLossKind;
typedef struct RouterLossAttr {
    RouterLossKind kind;
    RouterScore score; /* BALANCE: a softmax, or the scores of all experts divided by (their sum + 1e-20) */
    /* number of ranks that share the microbatch; each rank has the same number of tokens */
    int ranks;
} RouterLossAttr;

typedef struct DispatchAttr {
    int64_t capacity; /* maximum number of rows per expert, or 0 if there is no limit (dropless) */
    bool pad;         /* if true, every expert has exactly `capacity` rows */
    /* if true, an expert over capacity drops its last copies; otherwise, its least probable copies */
    bool by_position;
    /* if true, dispatches only copies for experts >= `first`; other ranks dispatch the rest */
    bool local;
    int64_t first;
} DispatchAttr;

typedef struct ArrivalAttr {
    int64_t first, experts; /* this rank's experts */
    int64_t etp;            /* ranks are numbered so that etp consecutive ranks share a part of the rows */
} ArrivalAttr;

typedef struct PermuteAttr {
    int64_t copies; /* number of copies per row of x: one for each of the token's experts */
} PermuteAttr;

typedef struct ScaleAttr {
    bool sigmoid; /* if true, multiplies by sigmoid(p) instead of p */
} ScaleAttr;

typedef struct QuantileAttr {
    int64_t topk;
} QuantileAttr;

typedef struct QuantileBiasAttr {
    double ema; /* weight of the old bias in the moving average */
} QuantileBiasAttr;

/* Returns the new bias of expert e (of n experts), before the mean of the biases is subtracted. The comment
 * on op_quantile describes sum [n + 1]. */
HOST_DEVICE static inline double quantile_step(double ema, double bias, const double *sum, int64_t e,
                                               int64_t n) {
    return ema * bias + (1 - ema) * (sum[e] / sum[n]);
}

typedef struct ExpertBiasAttr {
    double rate;
} ExpertBiasAttr;

/* Largest head width that fused attention kernels support. */
enum { ATTENTION_WIDEST = 256 };
enum { WINDOW_OFF = -1 };
enum { PAGE_ROWS = 64 };   /* a tile of keys never crosses the end of a page */
enum { PAGED_TILE = 128 }; /* maximum number of tokens in a tile of paged_attention */
typedef struct AttentionAttr {
    double scale;             /* factor by which q.k is multiplied before the softmax */
    double softcap;           /* if not 0, a scaled score x becomes softcap tanh(x / softcap) */
    SequenceSlice query, key; /* the positions of q's rows, and of k's and v's rows */
    /* The query at position p attends to keys in [p - window_left, p + window_right]. WINDOW_OFF means no
     * limit on that side. Causal attention has window_right = 0. */
    int64_t window_left, window_right;
    /* Keys are divided into chunks of this many positions, counted from first_key, and a query does not
     * attend to chunks before the one that contains its position. 0 means that there are no chunks. */
    int64_t chunk_size;
    /* index of q's head 0 among the layer's heads, and number of heads in the layer */
    int64_t first_head, heads;
    int64_t first_local; /* index of q's head 0 among this rank's heads that have a sink or a bias */
    /* Relative position bias: each bucket (kernels/relative_buckets.h) has a bias that is added to scaled
     * scores. */
    int64_t bias_max_distance;
    bool bias_bidirectional; /* if false, all keys after the query share bucket 0 */
    double alibi;            /* if not 0, alibi_bias is added to scaled scores */
    int64_t page;            /* paged_attention: number of rows per page, a multiple of PAGE_ROWS */
    /* The dropout index of a probability is ((sample*heads + head)*S + query)*S + key. S is seq_total, which is at
     * least as large as the length of any sequence. */
    DropoutAttr dropout;
} AttentionAttr;

typedef struct RopePagedAttr {
    AttentionAttr attention;
    RopeAttr rope;
} RopePagedAttr;

/* ALiBi (Press et al., 2022): a score's bias is proportional to the distance between key and query. The
 * slopes for n heads are 2^(-alibi i / n) for i = 1 to n. If n is not a power of two, let m be the largest
 * power of two below n. The first m heads then use the slopes for m heads, and the remaining heads use the
 * odd-numbered slopes (1, 3, 5, ...) for 2 m heads. */
HOST_DEVICE static inline double alibi_bias(const AttentionAttr *a, int64_t head, int64_t key_minus_query) {
    const int64_t i = a->first_head + head;
    int64_t m = 1;
    while (2 * m <= a->heads) m *= 2;
    const double steps = i < m ? (double)(i + 1) : (double)(i - m) + 0.5;
    return -fabs((double)key_minus_query) * exp2(-a->alibi / (double)m * steps);
}

/* Returns the first position that the query at position p attends to. first_key is the position at which the
 * query's document begins. */
HOST_DEVICE static inline int64_t attention_begin(int64_t window_left, int64_t chunk_size, int64_t p,
                                                  int64_t first_key) {
    const int64_t window = window_left == WINDOW_OFF ? 0 : p - window_left,
                  chunk = chunk_size && p > first_key ? p - (p - first_key) % chunk_size : first_key;
    return window > chunk ? window : chunk;
}

typedef struct EmbeddingAttr {
    /* The table operand contains the full table's rows from `first` on; the full table has `total` rows. The
     * output is 0 for ids whose rows are not in the operand. */
    int64_t first, total;
} EmbeddingAttr;

typedef struct LossAttr {
    /* columns >= vocab are padding: the softmax excludes them, and their gradient is 0 */
    int64_t vocab;
    int64_t first; /* index of the tensor's column 0 in the full vocabulary */
} LossAttr;

/* A part of a flat buffer that an optimizer op processes as a unit. A piece is stored as a row of an I64
 * tensor. */
typedef struct FlatPiece {
    int64_t begin, count; /* first element, and number of elements (at most PIECE_MOST) */
    int64_t group;        /* index in StepNumbers.group */
} FlatPiece;
enum { PIECE_WORDS = sizeof(FlatPiece) / sizeof(int64_t), PIECE_MOST = 2048, STEP_GROUPS = 8 };
typedef struct StepGroup {
    double lr, weight_decay;
    double eps; /* read only by adamw */
} StepGroup;

/* The numbers that differ between optimizer steps. The numbers are stored as a row of an F64 tensor, so that
 * a CUDA graph reads the current numbers each time it runs. If an op has such a tensor, its numbers replace
 * those in the attributes. */
typedef struct StepNumbers {
    StepGroup group[STEP_GROUPS];
    double unbias1, unbias2; /* AdamW: 1 / (1 - beta^step) */
    double grad_scale;
    double updates; /* 0 if the step must leave the parameters unchanged */
} StepNumbers;
enum { STEP_WORDS = sizeof(StepNumbers) / sizeof(double) };

typedef struct ClipAttr {
    double most; /* maximum norm of the scaled gradient, or 0 if there is no maximum */
} ClipAttr;
typedef struct ClipOutcome {
    double norm, clip; /* norm of the scaled gradient, and clipping coefficient */
    double updates;    /* 0 if a norm is not finite: the step then leaves the parameters unchanged */
} ClipOutcome;
enum { CLIP_WORDS = sizeof(ClipOutcome) / sizeof(double), CLIP_NORMS = 2 /* maximum number of norms */ };

typedef struct AdamAttr {
    StepGroup group[STEP_GROUPS];
    double beta1, beta2;
    double correction1, correction2; /* 1 - beta^step */
    /* factor by which the gradient is multiplied; combines unscaling, averaging and clipping */
    double grad_scale;
} AdamAttr;

typedef struct SgdAttr { /* also the attributes of Muon's ops */
    StepGroup group[STEP_GROUPS];
    double momentum, grad_scale;
    bool nesterov; /* read only by muon_momentum */
} SgdAttr;

typedef struct LionAttr {
    StepGroup group[STEP_GROUPS];
    double beta1, beta2, grad_scale;
} LionAttr;

/* Describes the rows of a weight that QK clipping scales. Every `rows` consecutive rows belong to one group of
 * `heads` heads. In each group, rows [begin, end) are multiplied by a factor. */
typedef struct QkClipAttr {
    /* index of the operand's first element in the full weight, and the weight's number of columns */
    int64_t first, columns;
    int64_t rows, begin, end, heads;
    double threshold, exponent;
} QkClipAttr;

/* Returns the factor by which an element of the operand is multiplied. `max` contains each head's largest
 * score, or 0 if that score is negative. */
HOST_DEVICE static inline double qk_clip_factor(const QkClipAttr *a, const double *max, int64_t element) {
    const int64_t row = (a->first + element) / a->columns, group = row / a->rows, at = row % a->rows;
    double most = 0;
    if (at < a->begin || at >= a->end) return 1;
    for (int64_t i = group * a->heads; i < (group + 1) * a->heads; i++) most = max[i] > most ? max[i] : most;
    return most > a->threshold && most < HUGE_VAL ? pow(a->threshold / most, a->exponent) : 1;
}

enum { SUM_BLOCK = 64 }; /* parameter shards begin at multiples of SUM_BLOCK */
typedef struct SumAttr {
    /* number of elements per block (SUM_BLOCK or 1); the squares in a block are first summed in double */
    int64_t block;
} SumAttr;

typedef struct SnapAttr {
    int bits;
} SnapAttr;

typedef struct FillAttr {
    double value;
} FillAttr;

typedef struct ChooseAttr {
    int64_t n; /* number of leading elements of a row that can be chosen */
} ChooseAttr;

typedef struct SoftcapAttr {
    double cap;
} SoftcapAttr;

typedef struct FactorAttr {
    double factor;
} FactorAttr;
