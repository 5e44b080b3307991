/* The operands of a linear layer's three products in FP8. Megatron-LM core/fp8_utils.py with Transformer
 * Engine's recipes (pytorch/fp8.py FP8GlobalStateManager, common/recipe). Where the device multiplies FP8
 * numbers, products take their codes, else what they stand for, q / scale in fp32, so that any product will
 * do: the same q.
 *
 *   delayed     the scale of a tensor follows from its amaxes in past steps, over all ranks of a stage. The
 *               window moves once a step, whatever the microbatches (Transformer Engine: once a forward)
 *   tensorwise  from its own amax, over all ranks that hold parts of it
 *   blockwise   every 128 terms of a sum have a scale of their own, of a weight every 128 x 128. Blocks begin
 *               where a rank's part begins: a cut that is no multiple of 128 makes others
 *
 * The first two give the same scales in any layout, but for the rounding of what is scaled. */
#ifndef ISOTRON_OPS_QUANTIZE_H
#define ISOTRON_OPS_QUANTIZE_H

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
    bool fixed_order; /* sums are in one order whatever the batch, so that products are emulated */
    /* a weight's codes are taken once per step, not in every pass: two bytes per element */
    bool keep_weights;
    bool keep_inputs; /* not blockwise: a forward takes the codes of x's transpose for the backward, too */
} QuantSpec;

/* Of one linear layer. */
typedef struct Quantiser {
    QuantSpec spec;
    const Param *weight;
    Param *state; /* [QUANT_ROLES, 1 + history], a buffer: see kernels/ops.def; delayed only, else NULL */
    struct QuantKept *kept; /* of the weight, for all passes of a step */
} Quantiser;

/* NULL: `spec` asks for nothing. name: of the layer. Registers its states (param/state.h): when a step ends,
 * delayed scales follow from the amaxes of all ranks of the stage; with keep_weights, where the device
 * multiplies codes and this rank holds the whole weight, its codes are taken whenever parameters change. */
const Quantiser *quantize_new(Registry *, const char *name, const Param *weight, QuantSpec);
/* Why the products of a layer of this rank, x [rows, in] and w [out, in], are emulated: the end of a
 * sentence. NULL: the device multiplies codes. */
const char *quantize_emulation(const Device *, QuantSpec, int64_t rows, int64_t in, int64_t out);
/* How many layers of the registry have FP8 products, and why those of so many tokens are emulated (NULL: none
 * is). */
int64_t quantize_layers(const Registry *, int64_t tokens, const char **emulation);
/* The state [1 + n] that x is quantised by, for the rest of the forward or of the node's backward. `type` is
 * that of the whole operand of which x is this rank's part. NULL without a quantiser, and blockwise. Past
 * amaxes take that of x in, if what runs is a training step; for codes quantize_codes does that. */
Tensor *quantize_state(Tape *, const Quantiser *, QuantRole, Tensor *x, SpmdType type, bool codes);
/* What x is in a product that sums over its rows (tokens) or columns; x itself without a quantiser, else
 * fp32, for tape_drop. */
typedef enum QuantSum { QUANT_OVER_COLUMNS, QUANT_OVER_ROWS } QuantSum;
Tensor *quantize_run(Tape *, const Quantiser *, QuantRole, Tensor *x, Tensor *state, QuantSum);

/* The codes of x, and of its transpose: an operand sums over its columns. */
typedef struct QuantOperand {
    Tensor *codes, *inverse; /* NULL: not asked for */
    Fp8Blocks blocks;
} QuantOperand;
typedef struct QuantCodes {
    QuantOperand by[2]; /* [QuantSum]: over the columns of x itself, over its rows */
    unsigned kept; /* not for quantize_drop to give back: mask of 1 << QuantSum, and the inverses if any */
} QuantCodes;
/* Which codes, masks of 1 << QuantSum: both in one pass over x where a tensor has one scale. */
typedef struct QuantWanted {
    unsigned sums;
    unsigned kept; /* those of them that live as long as x (tape_tensor), of a tensor with one scale */
    bool first;    /* this forward or backward has not taken codes of x yet: past amaxes take it in */
} QuantWanted;
/* For quantize_drop. */
QuantCodes quantize_codes(Tape *, const Quantiser *, QuantRole, Tensor *x, Tensor *state, QuantWanted);
void quantize_drop(Tape *, QuantCodes *);

/* c = a b^T + bias [n] (or NULL), and its activation (or NULL); c is written or added to. fast: sums may have
 * fewer bits than fp32, which Transformer Engine grants the forward. */
typedef struct QuantProduct {
    QuantOperand a, b;
    Tensor *bias, *c, *act;
    Activation activation;
    bool fast;
} QuantProduct;
void quantize_multiply(Tape *, const QuantProduct *);

#endif
