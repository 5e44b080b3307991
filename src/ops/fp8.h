/* The operands of a linear layer's three GEMMs in FP8. Megatron-LM core/fp8_utils.py with Transformer Engine's recipes
 * (pytorch/fp8.py FP8GlobalStateManager, common/recipe). GEMMs use the FP8 values if the device can multiply them.
 * Otherwise they use q / scale in fp32, with the same q ("emulated").
 *
 *   delayed     the scale of a tensor follows from its amaxes in past steps, over all ranks of a stage. The
 *               window moves once a step, regardless of the microbatches (Transformer Engine: once a forward)
 *   tensorwise  the scale follows from the tensor's current amax, over all ranks that hold parts of it
 *   blockwise   every 128 terms of a sum have a separate scale; in a weight, every 128 x 128 block. Blocks begin
 *               where a rank's part begins, so sharding into parts that are not multiples of 128 changes them
 *
 * The first two have the same scales in any layout, up to the rounding of their inputs. */
#pragma once

#include "param/state.h"
#include "tape/tape.h"

typedef enum QuantRole { QUANT_X, QUANT_W, QUANT_DY, QUANT_ROLES } QuantRole;

typedef enum QuantFormat {
    QUANT_OFF, /* no tensor is rounded */
    QUANT_E4M3,
    QUANT_HYBRID /* gradients are E5M2 */
} QuantFormat;
typedef enum QuantRecipe { QUANT_DELAYED, QUANT_TENSORWISE, QUANT_BLOCKWISE } QuantRecipe;

typedef struct QuantSpec {
    QuantFormat format;
    QuantRecipe recipe;
    int64_t margin, history;
    bool most_recent, wgrad, emulated; /* emulated: GEMMs are emulated on any device */
    bool fixed_order;  /* the order of sums is independent of the batch, so GEMMs are emulated */
    bool keep_weights; /* weights are cast once per step, not in every pass: costs two bytes per element */
    bool keep_inputs;  /* not blockwise: the forward also casts x's transpose, for the backward */
} QuantSpec;

/* The quantiser of one linear layer. */
typedef struct Quantiser {
    QuantSpec spec;
    const Param *weight;
    Param *state; /* [QUANT_ROLES, 1 + history], a buffer, see kernels/ops.def; only for delayed, else NULL */
    struct QuantKept *kept; /* FP8 values of the weight, for all passes of a step */
} Quantiser;

/* NULL if `spec` is QUANT_OFF. name: the layer's name. Registers its states (param/state.h): when a step ends,
 * delayed scales follow from the amaxes of all ranks of the stage. keep_weights: if the device multiplies FP8
 * values and this rank holds all of the weight, the weight is cast whenever parameters change. */
const Quantiser *quantize_new(Registry *, const char *name, const Param *weight, QuantSpec);
/* The reason why the GEMMs of a layer of this rank, x [rows, in] and w [out, in], are emulated, as the end of
 * a message. NULL: the device multiplies FP8 values. */
const char *quantize_emulation(const Device *, QuantSpec, int64_t rows, int64_t in, int64_t out);
/* The number of layers of the registry that have FP8 GEMMs. *emulation becomes the reason why GEMMs over `tokens`
 * tokens are emulated (NULL: they are not). */
int64_t quantize_layers(const Registry *, int64_t tokens, const char **emulation);
/* The state [1 + n] that quantises x, for the rest of the forward or of the node's backward. `type` is the type of the
 * full operand, of which x is this rank's part. NULL without a quantiser, and for blockwise. In a training step x's
 * amax is pushed to the history; with `native`, quantize_values does that. */
Tensor *quantize_state(Tape *, const Quantiser *, QuantRole, Tensor *x, SpmdType type, bool native);
/* x as an operand of a GEMM that sums over its rows (tokens) or columns. Returns x itself without a
 * quantiser, else an fp32 tensor for tape_drop. */
typedef enum QuantSum { QUANT_OVER_COLUMNS, QUANT_OVER_ROWS } QuantSum;
Tensor *quantize_run(Tape *, const Quantiser *, QuantRole, Tensor *x, Tensor *state, QuantSum);

/* The FP8 values of x, or of its transpose; a GEMM sums over an operand's columns. */
typedef struct QuantOperand {
    Tensor *values, *inverse; /* NULL: not requested */
    Fp8Blocks blocks;
} QuantOperand;
typedef struct QuantValues {
    QuantOperand by[2]; /* [QuantSum]: over the columns of x itself, over its rows */
    unsigned kept;      /* not freed by quantize_drop: mask of 1 << QuantSum, and the inverses if any */
} QuantValues;
/* Masks of 1 << QuantSum. If a tensor has one scale, one pass over x computes both operands. */
typedef struct QuantWanted {
    unsigned sums;
    unsigned
        kept; /* the subset of `sums` that lives as long as x (tape_tensor); only for tensors with one scale */
    bool first; /* x has not been cast yet in this forward or backward: its amax is pushed to the
                      history */
} QuantWanted;
/* Free the result with quantize_drop. */
QuantValues quantize_values(Tape *, const Quantiser *, QuantRole, Tensor *x, Tensor *state, QuantWanted);
void quantize_drop(Tape *, QuantValues *);

/* c = a b^T + bias [n] (or NULL), and its activation (or NULL); c is written or added to. fast: sums may have
 * fewer bits than fp32, which Transformer Engine allows in the forward. */
typedef struct QuantGemm {
    QuantOperand a, b;
    Tensor *bias, *c, *act;
    Activation activation;
    bool fast;
} QuantGemm;
void quantize_multiply(Tape *, const QuantGemm *);
