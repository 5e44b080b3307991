/* The attributes of the ops: what a kernel needs to know beside its tensors. One struct per op that has
 * attributes; the op list with operands is kernels/ops.def. Every struct is plain data: the tape copies it. */
#ifndef ISOTRON_KERNELS_ATTR_H
#define ISOTRON_KERNELS_ATTR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/zigzag.h"
#include "kernels/fp8_blocks.h"
#include "tensor/fp8.h"

typedef enum Activation {
    ACT_GELU_TANH,
    ACT_GELU_ERF,
    ACT_QUICK_GELU,
    ACT_SQUARED_RELU,
    /* Gated: the input is [..., gate | up], the output act(gate) * up has half its width. */
    ACT_SWIGLU, /* act is SiLU */
    ACT_GEGLU_TANH,
    ACT_GEGLU_ERF,
} Activation;
static inline bool activation_is_gated(Activation a) { return a >= ACT_SWIGLU; }
typedef struct ActivationAttr {
    Activation kind;
} ActivationAttr;

typedef struct LinearAttr {
    bool fixed_order; /* every element is one chain of multiply-adds over its terms in order: the same bits
                         however many other rows and columns there are (BLAS chooses its order by shape) */
    Activation activation; /* of the output `act`, or what made x of `pre`; not gated */
} LinearAttr;

typedef struct Fp8ScaleAttr {
    double largest;   /* that an amax is scaled to */
    bool most_recent; /* fp8_scale: the scale follows from this step's amax, else from the largest of all n;
                         one that is 0 or not finite leaves it as it was */
} Fp8ScaleAttr;

typedef struct QuantizeAttr {
    Fp8Type type;
    int64_t rows,
        columns; /* of a block, if blocks have their own scales (powers of two); rows as tensor_rows */
} QuantizeAttr;

typedef struct Fp8CastAttr {
    Fp8Blocks blocks; /* FP8_WHOLE: scaled by the state */
} Fp8CastAttr;

typedef struct Fp8GemmAttr {
    Fp8Blocks a, b;        /* not both FP8_SQUARES */
    bool fast;             /* sums may have fewer bits than fp32 has: Hopper's tensor cores keep about 14 */
    Activation activation; /* of the output `act`; not gated */
} Fp8GemmAttr;

typedef struct NormAttr {
    bool rms;      /* RMSNorm (no mean, no bias), else LayerNorm */
    bool one_plus; /* the gain is stored as w and applied as 1 + w (--apply-layernorm-1p) */
    double eps;
} NormAttr;

typedef struct RopeAttr {
    int32_t dim;      /* rotated leading part of each head, even */
    bool interleaved; /* pairs (2i, 2i+1), else (i, i + dim/2) */
    bool inverse;     /* rotate back: the backward */
} RopeAttr;

/* Dropout draws by global index (base/philox.h). Element i of site is kept if
 * philox_u32(seed, site, i) >= rate * 2^32, and then scaled by 1 / (1 - rate). Jitter: `rate` is how far a factor may be from 1. */
typedef struct DropoutAttr {
    double rate;
    uint64_t seed, site;
    int64_t first_sample; /* index in the whole run of the microbatch's first sample */
    int64_t seq_total;    /* whole sequence length */
    SequenceSlice slice;  /* of this tensor's rows */
} DropoutAttr;

typedef enum RouterScore {
    ROUTER_TOPK_SOFTMAX, /* softmax over the chosen experts only */
    ROUTER_SOFTMAX,      /* over all experts; those of the chosen do not add up to 1 */
    ROUTER_SIGMOID,      /* s, with topk > 1 divided by the sum of the chosen + 1e-20 */
} RouterScore;
typedef struct RouteAttr {
    RouterScore score;
    int64_t groups, group_topk; /* only experts of the group_topk best of `groups` groups can be chosen; a
                                   group counts the sum of its topk / group_topk best. groups <= 1: all can */
    double scaling;             /* of the probabilities */
} RouteAttr;

typedef enum RouterLossKind { ROUTER_BALANCE, ROUTER_Z } RouterLossKind;
typedef struct RouterLossAttr {
    RouterLossKind kind;
    bool sigmoid; /* BALANCE: probabilities are sigmoids divided by their sum, else a softmax */
    int ranks;    /* that the microbatch's tokens are cut over: all are `ranks` times those of the tensor */
} RouterLossAttr;

typedef struct DispatchAttr {
    int64_t capacity; /* rows that an expert takes; 0: all of them (dropless) */
    bool pad;         /* every expert gets exactly `capacity` rows */
    bool by_position; /* what does not fit is dropped from the end, else by the smallest probability */
    bool local;       /* only copies for experts from `first` on are taken; the others go elsewhere */
    int64_t first;
} DispatchAttr;

typedef struct ArrivalAttr {
    int64_t first, experts; /* of this rank */
    int64_t etp;            /* the ranks are numbered with etp of them to a part of the rows, fastest */
} ArrivalAttr;

typedef struct PermuteAttr {
    int64_t copies; /* of each row of x: the experts of a token */
} PermuteAttr;

typedef struct ScaleAttr {
    bool sigmoid; /* multiply by sigmoid(p) instead of p */
} ScaleAttr;

typedef struct ExpertBiasAttr {
    double rate;
} ExpertBiasAttr;

enum { WINDOW_OFF = -1 };
typedef struct AttentionAttr {
    double scale;                      /* of q.k before the softmax */
    double softcap;                    /* then a score x becomes softcap tanh(x / softcap); 0: it stays */
    SequenceSlice query, key;          /* positions of the rows of q, and of k and v */
    int64_t window_left, window_right; /* query at p sees keys in [p - left, p + right]; WINDOW_OFF: no limit
                                          on that side. Causal is window_right = 0. */
    int64_t first_head, heads;         /* head 0 of q among all of the model: for dropout */
    int64_t first_sink;                /* the sink of head 0 of q in the tensor of sinks */
    DropoutAttr dropout; /* of the probabilities; element index ((sample*heads + head)*S + query)*S + key */
} AttentionAttr;

typedef struct EmbeddingAttr {
    int64_t first,
        total; /* the table is rows [first, first + its rows) of `total`; ids elsewhere give zeros */
} EmbeddingAttr;

typedef struct LossAttr {
    int64_t vocab; /* columns from here on are padding: not part of the softmax, gradient zero */
    int64_t first; /* column 0 of the tensor in the whole vocabulary */
} LossAttr;

/* What the ops over flat buffers touch of them: a row of an I64 tensor. */
typedef struct FlatPiece {
    int64_t begin, count; /* elements; not more than PIECE_MOST */
    int64_t group;        /* which numbers of a step are the parameter's */
} FlatPiece;
enum { PIECE_WORDS = sizeof(FlatPiece) / sizeof(int64_t), PIECE_MOST = 2048, STEP_GROUPS = 4 };
typedef struct StepGroup {
    double lr, weight_decay;
} StepGroup;

/* What differs from step to step, as a row of an F64 tensor: a CUDA graph reads it when it runs. Takes the
 * place of the attributes' numbers. */
typedef struct StepNumbers {
    StepGroup group[STEP_GROUPS];
    double unbias1, unbias2; /* AdamW: 1 / (1 - beta^step) */
    double grad_scale;
    double updates; /* 0: the step changes nothing */
} StepNumbers;
enum { STEP_WORDS = sizeof(StepNumbers) / sizeof(double) };

typedef struct ClipAttr {
    double most; /* that the norm of the scaled gradient may be; 0: anything */
} ClipAttr;
typedef struct ClipOutcome {
    double norm, clip; /* of the scaled gradient; what it is multiplied by */
    double updates;    /* 0: the norm is not finite, and nothing is clipped */
} ClipOutcome;
enum { CLIP_WORDS = sizeof(ClipOutcome) / sizeof(double) };

typedef struct AdamAttr {
    StepGroup group[STEP_GROUPS];
    double beta1, beta2, eps;
    double correction1, correction2; /* 1 - beta^step */
    double grad_scale; /* multiplies the gradient first: unscaling, averaging and clipping in one factor */
} AdamAttr;

typedef struct SgdAttr {
    StepGroup group[STEP_GROUPS];
    double momentum, grad_scale;
} SgdAttr;

enum { SUM_BLOCK = 64 }; /* parts of parameters that ranks share out begin at multiples of it */
typedef struct SumAttr {
    int64_t block; /* elements of a piece whose squares are added in double: SUM_BLOCK, or 1 */
} SumAttr;

typedef struct SnapAttr {
    int bits;
} SnapAttr;

typedef struct FillAttr {
    double value;
} FillAttr;

typedef struct SoftcapAttr {
    double cap;
} SoftcapAttr;

typedef struct FactorAttr {
    double factor;
} FactorAttr;

#endif
