/* Quantizes the operands of a linear layer's three GEMMs to FP8. It follows Megatron-LM's core/fp8_utils.py
 * with the recipes of Transformer Engine (pytorch/fp8.py FP8GlobalStateManager, common/recipe). GEMMs
 * multiply the FP8 values q if the device can. Otherwise they are emulated: they multiply q / scale in fp32.
 *
 *   delayed     the scale of a tensor follows from its amaxes in past steps, over all ranks of a stage. The
 *               window moves once a step, regardless of the microbatches (Transformer Engine: once a forward)
 *   tensorwise  the scale follows from the tensor's current amax, over all ranks that hold parts of it
 *   blockwise   every 128 terms of a sum have a separate scale; in a weight, every 128 x 128 block. Blocks begin
 *               where a rank's part begins, so sharding into parts that are not multiples of 128 changes them
 *
 * The scales of the first two do not depend on the layout, except through the rounding of their inputs. */
#pragma once

#include "param/state.h"
#include "tape/tape.h"

typedef enum QuantRole { QUANT_X, QUANT_W, QUANT_DY, QUANT_ROLES } QuantRole;

typedef enum QuantFormat {
    QUANT_OFF, /* no operand is quantized */
    QUANT_E4M3,
    QUANT_HYBRID /* gradients are E5M2, other operands E4M3 */
} QuantFormat;
typedef enum QuantRecipe { QUANT_DELAYED, QUANT_TENSORWISE, QUANT_BLOCKWISE } QuantRecipe;

typedef struct QuantSpec {
    QuantFormat format;
    QuantRecipe recipe;
    int64_t margin, history;
    bool most_recent, wgrad, emulated; /* emulated: whether GEMMs are emulated on any device */
    bool fixed_order;                  /* whether sums must not depend on the batch, so that GEMMs are
                                          emulated */
    bool keep_weights;  /* whether weights are cast once per step instead of in every pass, which costs two
                          bytes per element */
    bool store_weights; /* whether trained weights are stored in FP8 (param/fp8_weights.h) */
    bool keep_inputs;   /* whether the forward also casts the transpose of x for the backward; not for
                          blockwise */
} QuantSpec;

/* The quantiser of one linear layer. */
typedef struct Quantiser {
    QuantSpec spec;
    Param *weight;
    Param *state; /* [QUANT_ROLES, 1 + history], a buffer, see kernels/ops.def; only for delayed, otherwise
                     NULL */
    struct QuantKept *kept; /* FP8 values of the weight, for all passes of a step */
} Quantiser;

/* Returns NULL if spec.format is QUANT_OFF. `name` is the name of the layer. Registers the quantiser's state
 * (param/state.h): at the end of a step, delayed scales are computed from the amaxes of all ranks of the
 * pipeline stage. With keep_weights, the weight is cast whenever parameters change, unless GEMMs are
 * emulated. */
const Quantiser *quantize_new(Registry *, const char *name, Param *weight, QuantSpec);
/* Returns why a layer's GEMMs, with x [rows, in] and w [out, in] on this rank, are emulated, as the end of a
 * message. Returns NULL if they are not emulated. */
const char *quantize_emulation(const Device *, QuantSpec, int64_t rows, int64_t in, int64_t out);
/* The number of layers of the registry that have FP8 GEMMs. *emulation is set to the reason why GEMMs over
 * `tokens` tokens are emulated, or to NULL if they are not. */
int64_t quantize_layers(const Registry *, int64_t tokens, const char **emulation);
/* Returns the state [1 + n] that quantises x in this forward, or in this node's backward. type: the SPMD type of the
 * full operand, of which x is this rank's part. Returns NULL without a quantiser, and for blockwise. In a training
 * step, x's amax is added to the history; with `native`, quantize_values does that. */
Tensor *quantize_state(Tape *, const Quantiser *, QuantRole, Tensor *x, SpmdType type, bool native);
/* Returns x as an operand of an emulated FP8 GEMM, which sums over x's rows (tokens) or columns. This is an fp32
 * tensor, which the caller must free with tape_drop. Without a quantiser, returns x itself. */
typedef enum QuantSum { QUANT_OVER_COLUMNS, QUANT_OVER_ROWS } QuantSum;
Tensor *quantize_run(Tape *, const Quantiser *, QuantRole, Tensor *x, Tensor *state, QuantSum);

/* The FP8 values of x or of its transpose. The transpose is needed because FP8 GEMMs sum over the columns of both
 * operands. */
typedef struct QuantOperand {
    Tensor *values, *inverse; /* NULL: not requested */
    Fp8Blocks blocks;
} QuantOperand;
typedef struct QuantValues {
    QuantOperand by[2]; /* indexed by QuantSum: for sums over the columns of x, and over its rows */
    unsigned kept;      /* what quantize_drop does not free: mask of 1 << QuantSum, and the inverses if there
                           are any */
} QuantValues;
/* Masks of 1 << QuantSum. If a tensor has one scale, one pass over x computes both operands. */
typedef struct QuantWanted {
    unsigned sums;
    unsigned
        kept; /* the subset of `sums` that lives as long as x (tape_tensor); only for tensors with one scale */
    bool first; /* whether x has not yet been cast in this pass, so that its amax is added to the history */
} QuantWanted;
/* Free the result with quantize_drop. */
QuantValues quantize_values(Tape *, const Quantiser *, QuantRole, Tensor *x, Tensor *state, QuantWanted);
void quantize_drop(Tape *, QuantValues *);

/* c = a b^T + bias [n] (or NULL), and its activation (or NULL); c is overwritten or accumulated. fast: sums may be less
 * precise than fp32, as in Transformer Engine's forward. */
typedef struct QuantGemm {
    QuantOperand a, b;
    Tensor *bias, *c, *act;
    Activation activation;
    bool fast;
} QuantGemm;
void quantize_multiply(Tape *, const QuantGemm *);
