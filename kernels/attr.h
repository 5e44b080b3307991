/* The attributes of the ops: what a kernel needs to know beside its tensors. One struct per op that has
 * attributes; the op list with operands is src/ops/ops.def. Every struct is plain data: the tape copies it.
 */
#ifndef ISOTRON_KERNELS_ATTR_H
#define ISOTRON_KERNELS_ATTR_H

#include <stdbool.h>
#include <stdint.h>

typedef struct LinearAttr {
    bool fixed_order; /* every element is one chain of multiply-adds over its terms in order: the same bits
                         however many other rows and columns there are (BLAS chooses its order by shape) */
} LinearAttr;

typedef struct NormAttr {
    bool rms;      /* RMSNorm (no mean, no bias), else LayerNorm */
    bool one_plus; /* the gain is stored as w and applied as 1 + w (--apply-layernorm-1p) */
    double eps;
} NormAttr;

typedef enum Activation {
    ACT_GELU_TANH,
    ACT_GELU_ERF,
    ACT_QUICK_GELU,
    ACT_SQUARED_RELU,
    ACT_SWIGLU
} Activation;
typedef struct ActivationAttr {
    Activation
        kind; /* SWIGLU: the input is [..., gate | up], the output silu(gate) * up has half its width */
} ActivationAttr;

typedef struct RopeAttr {
    int32_t dim;      /* rotated leading part of each head, even */
    bool interleaved; /* pairs (2i, 2i+1), else (i, i + dim/2) */
    bool inverse;     /* rotate back: the backward */
} RopeAttr;

/* Dropout draws by global index (base/philox.h): keep element i of site iff philox_u32(seed, site, i) >= rate
 * * 2^32; kept values are scaled by 1 / (1 - rate). */
typedef struct DropoutAttr {
    double rate;
    uint64_t seed, site;
    int64_t first_sample; /* index in the whole run of the microbatch's first sample */
    int64_t seq_total;    /* whole sequence length; this tensor's rows start at position first_position */
    int64_t first_position;
} DropoutAttr;

enum { WINDOW_OFF = -1 };
typedef struct AttentionAttr {
    double scale;                      /* of q.k before the softmax */
    int64_t first_query;               /* position of query row 0 on the axis of the keys (0 in training) */
    int64_t window_left, window_right; /* query at p sees keys in [p - left, p + right]; WINDOW_OFF: no limit
                                          on that side. Causal is window_right = 0. */
    DropoutAttr dropout; /* of the probabilities; element index ((sample*heads + head)*S + query)*S + key */
} AttentionAttr;

typedef struct LossAttr {
    int64_t vocab; /* columns from here on are padding: not part of the softmax, gradient zero */
} LossAttr;

typedef struct AdamAttr {
    double lr, beta1, beta2, eps, weight_decay;
    double correction1, correction2; /* 1 - beta^step */
    double grad_scale; /* multiplies the gradient first: unscaling, averaging and clipping in one factor */
} AdamAttr;

typedef struct SgdAttr {
    double lr, momentum, weight_decay, grad_scale;
} SgdAttr;

typedef struct FillAttr {
    double value;
} FillAttr;

#endif
