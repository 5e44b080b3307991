/* The attributes of the ops: a kernel's inputs other than tensors. One struct per op that has
 * attributes; kernels/ops.def lists the ops with their operands. Every struct is plain data: the tape copies
 * it. */
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
    ACT_XIELU, /* has parameters, so only ops/xielu.h computes it */
    /* Gated: the input is [..., gate | up], and the output act(gate) * up has half its width. */
    ACT_SWIGLU, /* act is SiLU */
    ACT_GEGLU_TANH,
    ACT_GEGLU_ERF,
    ACT_QUICK_GEGLU,
} Activation;
static inline bool activation_is_gated(Activation a) { return a >= ACT_SWIGLU; }
/* With a gate: y = act(min(gate, limit)) * (min(max(up, -limit), limit) + offset). */
typedef struct ActivationAttr {
    Activation kind;
    double limit; /* 0: none */
    double offset;
} ActivationAttr;

typedef struct LinearAttr {
    /* Every element is a sum of its terms in an order that does not depend on the number of rows and columns. The
     * gradient of a weight is one chain of multiply-adds in the order of the rows. */
    bool fixed_order;
    bool
        steady; /* linear: the previous op has not written the weight, so that a GPU may read it while that op runs */
    Activation activation; /* the activation that gives `act` from y, or x from `pre`; not gated */
} LinearAttr;

typedef struct LinearHeadsAttr {
    bool fixed_order; /* as in LinearAttr */
    bool transposed;  /* the weights are [h,i,o] */
} LinearHeadsAttr;

typedef struct Fp8ScaleAttr {
    double largest; /* the value that an amax is scaled to */
    /* fp8_scale: if true, the scale is computed from this step's amax; if false, from the largest of all n.
     * An amax that is 0 or not finite leaves the scale unchanged. */
    bool most_recent;
} Fp8ScaleAttr;

typedef struct QuantizeAttr {
    Fp8Type type;
    int64_t rows,
        columns; /* size of a block, if each block has a scale (a power of two); rows as in tensor_rows */
} QuantizeAttr;

typedef struct Fp8CastAttr {
    Fp8Blocks blocks; /* FP8_WHOLE: scaled by the state */
} Fp8CastAttr;

/* Elements [first, first + n) of a weight [rows, columns] in row-major order, where n is the length of the operand. */
typedef struct Fp8PartAttr {
    int64_t rows, columns, first;
    Fp8Blocks blocks; /* FP8_WHOLE or FP8_SQUARES */
    DType rounded;    /* x is rounded to this type before it is cast */
} Fp8PartAttr;

typedef struct Fp8GemmAttr {
    Fp8Blocks a, b;        /* not both FP8_SQUARES */
    bool fast;             /* sums may have fewer bits than fp32: Hopper's tensor cores keep about 14 */
    Activation activation; /* the activation that gives `act`; not gated */
} Fp8GemmAttr;

typedef struct NormAttr {
    bool rms;      /* true: RMSNorm (no mean, no bias); false: LayerNorm */
    bool no_gain;  /* the gain is not a parameter; the kernels get ones */
    bool no_bias;  /* LayerNorm without bias; the kernels read only whether there is a bias */
    bool one_plus; /* the gain is stored as w and applied as 1 + w (--apply-layernorm-1p) */
    double eps;
} NormAttr;

typedef struct RopeAttr {
    int32_t dim;      /* rotated leading part of each head, even */
    bool interleaved; /* true: the pairs are (2i, 2i+1); false: they are (i, i + dim/2) */
    bool inverse;     /* rotate back: the backward */
} RopeAttr;

/* Dropout draws by global index (base/philox.h). Element i of site is kept if philox_u32(seed, site, i) >=
 * rate * 2^32, and is then scaled by 1 / (1 - rate). Jitter: `rate` is the largest distance of a factor from
 * 1. */
typedef struct DropoutAttr {
    double rate;
    uint64_t seed, site;
    int64_t first_sample; /* index of the microbatch's first sample in the whole run */
    int64_t seq_total;    /* whole sequence length */
    SequenceSlice slice;  /* slice of this tensor's rows */
} DropoutAttr;

typedef enum RouterScore {
    ROUTER_TOPK_SOFTMAX, /* softmax over the chosen experts only */
    ROUTER_SOFTMAX,      /* over all experts; the chosen experts' probabilities do not sum to 1 */
    ROUTER_SIGMOID,      /* sigmoid s; if topk > 1, s / (sum of s over the chosen experts + 1e-20) */
    ROUTER_SQRTSOFTPLUS, /* s = sqrt(log(1 + exp(logit))), normalised like sigmoids */
    ROUTER_SPARSEMIXER, /* for each choice, a softmax over the experts near it that are not chosen before it */
} RouterScore;
/* The values by which experts are compared, before a bias is added. */
typedef enum RouterOrder {
    ORDER_SCORES,
    ORDER_LOGITS,
    ORDER_SOFTMAX, /* the softmax over all experts; only for ROUTER_TOPK_SOFTMAX */
} RouterOrder;
typedef struct RouteAttr {
    RouterScore score;
    /* Only experts of the group_topk best of `groups` groups can be chosen. A group's score is the sum of its
     * group_scores best scores. groups <= 1: no limit. */
    int64_t groups, group_topk, group_scores;
    double scaling; /* scaling of the probabilities */
    double band;    /* SPARSEMIXER: logit x is near the choice's logit c if c - x <= band max(|x|, c) */
    RouterOrder order;
} RouteAttr;

typedef enum RandomLogits {
    RANDOM_NONE,
    RANDOM_REPLACES,      /* replaces every logit with a random number */
    RANDOM_BIASES_SAMPLE, /* adds one random vector to all logits of a sample */
    RANDOM_BIASES_LAYER,  /* adds the same random vector to all logits of a layer, in every step */
} RandomLogits;
typedef struct RandomLogitsAttr {
    RandomLogits kind;
    double std;        /* standard deviation of the normal distribution of the draws */
    DropoutAttr index; /* what a draw depends on; `rate` is not used */
} RandomLogitsAttr;

/* The index of the random draw for the first expert of a row of the logits [s, samples, experts]. */
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
    RouterScore score; /* BALANCE: a softmax, or the scores of all experts, divided by their sum + 1e-20 */
    int ranks;         /* number of ranks that share the microbatch; each has an equal number of tokens */
} RouterLossAttr;

typedef struct DispatchAttr {
    int64_t capacity; /* rows per expert, or 0 if there is no limit (dropless) */
    bool pad;         /* every expert gets exactly `capacity` rows */
    bool by_position; /* true: copies beyond the capacity are dropped from the end; false: those with the
                         smallest probabilities are dropped */
    bool local; /* only copies for experts from `first` on are dispatched; other ranks dispatch the rest */
    int64_t first;
} DispatchAttr;

typedef struct ArrivalAttr {
    int64_t first, experts; /* this rank's experts */
    int64_t etp;            /* ranks are numbered so that etp consecutive ones share a part of the rows */
} ArrivalAttr;

typedef struct PermuteAttr {
    int64_t copies; /* number of copies of each row of x: one per expert of a token */
} PermuteAttr;

typedef struct ScaleAttr {
    bool sigmoid; /* multiply by sigmoid(p) instead of p */
} ScaleAttr;

typedef struct QuantileAttr {
    int64_t topk;
} QuantileAttr;

typedef struct QuantileBiasAttr {
    double ema; /* weight of the old bias */
} QuantileBiasAttr;

/* The new bias of expert e of n, before its mean is subtracted. sum [n + 1]: see op_quantile. */
HOST_DEVICE static inline double quantile_step(double ema, double bias, const double *sum, int64_t e,
                                               int64_t n) {
    return ema * bias + (1 - ema) * (sum[e] / sum[n]);
}

typedef struct ExpertBiasAttr {
    double rate;
} ExpertBiasAttr;

/* The width of the widest head that the fused kernels of a GPU support. */
enum { ATTENTION_WIDEST = 256 };
enum { WINDOW_OFF = -1 };
enum { PAGE_ROWS = 64 };   /* a tile of keys does not cross pages */
enum { PAGED_TILE = 128 }; /* maximum number of tokens of a tile of paged_attention */
typedef struct AttentionAttr {
    double scale;             /* scale of q.k before the softmax */
    double softcap;           /* then a score x becomes softcap tanh(x / softcap); 0 means no softcap */
    SequenceSlice query, key; /* positions of the rows of q, and of k and v */
    /* The query at p sees keys in [p - left, p + right]; WINDOW_OFF means no limit on that side. Causal is
     * window_right = 0. */
    int64_t window_left, window_right;
    /* Keys form chunks of this many positions, counted from first_key. A query does not see chunks before its
     * own. 0 means that there are no chunks. */
    int64_t chunk_size;
    int64_t first_head, heads; /* index of q's head 0 among all heads of the model, for dropout */
    int64_t first_local;       /* index of q's head 0 among the heads that have a sink or a bias here */
    /* A score gets the bias of its bucket (kernels/relative_buckets.h), after the scale. */
    int64_t bias_max_distance;
    bool bias_bidirectional; /* otherwise, all later keys share bucket 0 */
    double alibi;            /* scores get alibi_bias, after the scale; 0 means no such bias */
    int64_t page;            /* paged_attention: rows of a page, a multiple of PAGE_ROWS */
    /* Probabilities are dropped by the index ((sample*heads + head)*S + query)*S + key. S, which is seq_total,
     * is at least the length of both sequences. */
    DropoutAttr dropout;
} AttentionAttr;

/* ALiBi (Press et al., 2022): a score's bias is proportional to the distance of key and query. The slopes of n
 * heads are 2^(-alibi i / n) for i = 1 to n. If n is not a power of two, the heads after the first m, the largest
 * power of two below n, have the slopes of heads 1, 3, 5, ... of 2 m heads. */
HOST_DEVICE static inline double alibi_bias(const AttentionAttr *a, int64_t head, int64_t key_minus_query) {
    const int64_t i = a->first_head + head;
    int64_t m = 1;
    while (2 * m <= a->heads) m *= 2;
    const double steps = i < m ? (double)(i + 1) : (double)(i - m) + 0.5;
    return -fabs((double)key_minus_query) * exp2(-a->alibi / (double)m * steps);
}

/* The first position that the query at p sees. first_key is the position at which its document begins. */
HOST_DEVICE static inline int64_t attention_begin(int64_t window_left, int64_t chunk_size, int64_t p,
                                                  int64_t first_key) {
    const int64_t window = window_left == WINDOW_OFF ? 0 : p - window_left,
                  chunk = chunk_size && p > first_key ? p - (p - first_key) % chunk_size : first_key;
    return window > chunk ? window : chunk;
}

typedef struct EmbeddingAttr {
    int64_t first, total; /* the table has rows [first, first + its rows) of `total`; other ids give zeros */
} EmbeddingAttr;

typedef struct LossAttr {
    int64_t vocab; /* later columns are padding: not part of the softmax, gradient zero */
    int64_t first; /* index, in the full vocabulary, of the tensor's column 0 */
} LossAttr;

/* A piece of a flat buffer that an op works on: a row of an I64 tensor. */
typedef struct FlatPiece {
    int64_t begin, count; /* elements; at most PIECE_MOST */
    int64_t group;        /* index in StepNumbers.group */
} FlatPiece;
enum { PIECE_WORDS = sizeof(FlatPiece) / sizeof(int64_t), PIECE_MOST = 2048, STEP_GROUPS = 4 };
typedef struct StepGroup {
    double lr, weight_decay;
} StepGroup;

/* The numbers that change from step to step, as a row of an F64 tensor, which a CUDA graph reads when it runs. They
 * replace the attributes' numbers. */
typedef struct StepNumbers {
    StepGroup group[STEP_GROUPS];
    double unbias1, unbias2; /* AdamW: 1 / (1 - beta^step) */
    double grad_scale;
    double updates; /* 0: the step changes no parameter */
} StepNumbers;
enum { STEP_WORDS = sizeof(StepNumbers) / sizeof(double) };

typedef struct ClipAttr {
    double most; /* bound of the norm of the scaled gradient, or 0 if there is none */
} ClipAttr;
typedef struct ClipOutcome {
    double norm, clip; /* norm of the scaled gradient; clipping coefficient */
    double updates;    /* 0: a norm is not finite, and there is no clipping by it */
} ClipOutcome;
enum { CLIP_WORDS = sizeof(ClipOutcome) / sizeof(double), CLIP_NORMS = 2 /* at most */ };

typedef struct AdamAttr {
    StepGroup group[STEP_GROUPS];
    double beta1, beta2, eps;
    double correction1, correction2; /* 1 - beta^step */
    double grad_scale; /* multiplies the gradient first: combines unscaling, averaging and clipping */
} AdamAttr;

typedef struct SgdAttr { /* also of Muon's ops */
    StepGroup group[STEP_GROUPS];
    double momentum, grad_scale;
    bool nesterov; /* muon_momentum */
} SgdAttr;

typedef struct LionAttr {
    StepGroup group[STEP_GROUPS];
    double beta1, beta2, grad_scale;
} LionAttr;

/* The rows of a weight whose products are scores. Rows of `rows` each belong to a group of `heads` heads; rows [begin,
 * end) of a group are multiplied. */
typedef struct QkClipAttr {
    int64_t first,
        columns; /* index of the operand's first element in the whole weight; columns of the weight */
    int64_t rows, begin, end, heads;
    double threshold, exponent;
} QkClipAttr;

/* The factor of an element of the operand. max: the largest score of each head, at least 0. */
HOST_DEVICE static inline double qk_clip_factor(const QkClipAttr *a, const double *max, int64_t element) {
    const int64_t row = (a->first + element) / a->columns, group = row / a->rows, at = row % a->rows;
    double most = 0;
    if (at < a->begin || at >= a->end) return 1;
    for (int64_t i = group * a->heads; i < (group + 1) * a->heads; i++) most = max[i] > most ? max[i] : most;
    return most > a->threshold && most < HUGE_VAL ? pow(a->threshold / most, a->exponent) : 1;
}

enum { SUM_BLOCK = 64 }; /* shards of parameters begin at multiples of SUM_BLOCK */
typedef struct SumAttr {
    int64_t block; /* elements of a piece whose squares are summed in double: SUM_BLOCK, or 1 */
} SumAttr;

typedef struct SnapAttr {
    int bits;
} SnapAttr;

typedef struct FillAttr {
    double value;
} FillAttr;

typedef struct LargestAttr {
    int64_t n; /* elements of a row that count */
} LargestAttr;

typedef struct SoftcapAttr {
    double cap;
} SoftcapAttr;

typedef struct FactorAttr {
    double factor;
} FactorAttr;
