/* The operands of a linear layer's three GEMMs in FP8. Megatron-LM core/fp8_utils.py with Transformer
 * Engine's recipes (pytorch/fp8.py FP8GlobalStateManager, common/recipe). Where the device multiplies FP8
 * values, GEMMs take these. Elsewhere GEMMs take q / scale in fp32, with the same q.
 *
 *   delayed     the scale of a tensor follows from its amaxes in past steps, over all ranks of a stage. The
 *               window moves once a step, whatever the microbatches (Transformer Engine: once a forward)
 *   tensorwise  from its own amax, over all ranks that hold parts of it
 *   blockwise   every 128 terms of a sum have a scale of their own, of a weight every 128 x 128. Blocks begin
 *               where a rank's part begins: a cut that is no multiple of 128 makes others
 *
 * The first two give the same scales in any layout, but for the rounding of what is scaled. */
#ifndef ISOTRON_OPS_FP8_H
#define ISOTRON_OPS_FP8_H

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
    bool most_recent, wgrad, emulated; /* emulated: whatever the device */
    bool fixed_order;  /* sums are in one order whatever the batch, so that GEMMs are emulated */
    bool keep_weights; /* weights are cast once per step, not in every pass: two bytes per element */
    bool keep_inputs;  /* not blockwise: the forward also casts x's transpose, for the backward */
} QuantSpec;

/* Of one linear layer. */
typedef struct Quantiser {
    QuantSpec spec;
    const Param *weight;
    Param *state; /* [QUANT_ROLES, 1 + history], a buffer: see kernels/ops.def; delayed only, else NULL */
    struct QuantKept *kept; /* of the weight, for all passes of a step */
} Quantiser;

/* NULL: `spec` asks for nothing. name: of the layer. Registers its states (param/state.h): when a step ends,
 * delayed scales follow from the amaxes of all ranks of the stage. keep_weights: if the device multiplies FP8
 * values and this rank holds the whole weight, the weight is cast whenever parameters change. */
const Quantiser *quantize_new(Registry *, const char *name, const Param *weight, QuantSpec);
/* Why the GEMMs of a layer of this rank, x [rows, in] and w [out, in], are emulated: the end of a
 * sentence. NULL: the device multiplies FP8 values. */
const char *quantize_emulation(const Device *, QuantSpec, int64_t rows, int64_t in, int64_t out);
/* How many layers of the registry have FP8 GEMMs, and why those of so many tokens are emulated (NULL: none
 * is). */
int64_t quantize_layers(const Registry *, int64_t tokens, const char **emulation);
/* The state [1 + n] that x is quantised by, for the rest of the forward or of the node's backward. `type` is
 * that of the whole operand of which x is this rank's part. NULL without a quantiser, and blockwise. In a
 * training step past amaxes take in that of x. native: quantize_values will do that. */
Tensor *quantize_state(Tape *, const Quantiser *, QuantRole, Tensor *x, SpmdType type, bool native);
/* x as an operand of a GEMM that sums over its rows (tokens) or columns; x itself without a quantiser, else
 * fp32, for tape_drop. */
typedef enum QuantSum { QUANT_OVER_COLUMNS, QUANT_OVER_ROWS } QuantSum;
Tensor *quantize_run(Tape *, const Quantiser *, QuantRole, Tensor *x, Tensor *state, QuantSum);

/* The FP8 values of x, and of its transpose: an operand sums over its columns. */
typedef struct QuantOperand {
    Tensor *values, *inverse; /* NULL: not asked for */
    Fp8Blocks blocks;
} QuantOperand;
typedef struct QuantValues {
    QuantOperand by[2]; /* [QuantSum]: over the columns of x itself, over its rows */
    unsigned kept; /* not for quantize_drop to give back: mask of 1 << QuantSum, and the inverses if any */
} QuantValues;
/* Masks of 1 << QuantSum. Where a tensor has one scale, both are made in one pass over x. */
typedef struct QuantWanted {
    unsigned sums;
    unsigned kept; /* those of them that live as long as x (tape_tensor), of a tensor with one scale */
    bool first;    /* x has not been cast yet in this forward or backward: past amaxes take its amax in */
} QuantWanted;
/* For quantize_drop. */
QuantValues quantize_values(Tape *, const Quantiser *, QuantRole, Tensor *x, Tensor *state, QuantWanted);
void quantize_drop(Tape *, QuantValues *);

/* c = a b^T + bias [n] (or NULL), and its activation (or NULL); c is written or added to. fast: sums may have
 * fewer bits than fp32, which Transformer Engine grants the forward. */
typedef struct QuantGemm {
    QuantOperand a, b;
    Tensor *bias, *c, *act;
    Activation activation;
    bool fast;
} QuantGemm;
void quantize_multiply(Tape *, const QuantGemm *);

#endif
