/* Quantizes the operands of a linear layer's three GEMMs to FP8. The code follows Megatron-LM's
 * core/fp8_utils.py with Transformer Engine's recipes (pytorch/fp8.py FP8GlobalStateManager, common/recipe).
 * GEMMs multiply the FP8 values q if the device supports FP8 GEMMs. Emulated GEMMs multiply q / scale in fp32
 * instead.
 *
 *   `delayed`     computes a tensor's scale from its amaxes in past steps, over all ranks in a stage. The window of
 *                 past steps moves once per step (in Transformer Engine, once per forward pass).
 *   `tensorwise`  computes the scale from the tensor's current amax, over all ranks that hold parts of the tensor.
 *   `blockwise`   uses a separate scale for every 128 terms of a sum and, in a weight, for every 128 x 128 block.
 *                 Blocks begin where a rank's part begins, so the blocks depend on the layout if the parts' sizes
 *                 are not multiples of 128.
 *
 * Delayed and tensorwise scales depend on the layout only through rounding errors in the quantized tensors.
 *
 * Experts' operands are quantized like those of separate linear layers (Transformer Engine
 * pytorch/module/grouped_linear.py): each expert has scales or blocks for its rows of x and dy, and for its weight. The
 * rows are those on this rank. Experts' GEMMs always multiply FP8 values, which their kernels emulate if
 * necessary. */
#pragma once

#include "param/state.h"
#include "tape/tape.h"

enum {
    QUANT_PARTS = 1u << AXIS_TP | 1u << AXIS_CP | 1u << AXIS_ETP
}; /* axes along which a tensor has one scale */

typedef enum QuantRole { QUANT_X, QUANT_W, QUANT_DY, QUANT_ROLES } QuantRole;

typedef enum QuantFormat {
    QUANT_OFF, /* no operand is quantized */
    QUANT_E4M3,
    QUANT_HYBRID /* gradients use E5M2; other operands use E4M3 */
} QuantFormat;
typedef enum QuantRecipe { QUANT_DELAYED, QUANT_TENSORWISE, QUANT_BLOCKWISE } QuantRecipe;

/* Replaces the format and recipe of linear layers whose names match a pattern (fnmatch with FNM_NOESCAPE). */
typedef struct QuantRule {
    const char *pattern;
    QuantFormat format;
    QuantRecipe recipe;
    bool of_quantised, of_plain; /* whether the rule applies to layers with FP8, and to layers without */
} QuantRule;

typedef struct QuantSpec {
    QuantFormat format;
    QuantRecipe recipe;
    int64_t margin, history;
    bool most_recent, wgrad, emulated; /* emulated: GEMMs are emulated even if the device has FP8 GEMMs */
    bool fixed_order;                  /* if true, sums must not depend on the batch, so GEMMs are emulated */
    /* if true, weights are cast once per step instead of in every pass, which takes two more bytes per
     * element */
    bool keep_weights;
    bool store_weights; /* whether trained weights are stored in FP8 (param/fp8_weights.h) */
    /* I8 or F8E4M3 if generation quantizes weights (param/quantized.h); F64 means the storage type */
    DType weights;
    /* whether the forward pass also casts x's transpose for the backward pass; false with blockwise scales */
    bool keep_inputs;
    const QuantRule *rules; /* [n_rules]: the first rule with a matching pattern applies */
    int n_rules;
} QuantSpec;

/* A quantizer for a linear layer, or for the linear layers of all experts. */
typedef struct Quantiser {
    QuantSpec spec;
    Param *weight;
    /* number of matrices in the weight: 1, or the number of experts on this rank, the first of which is `first` */
    int64_t matrices, first;
    /* [QUANT_ROLES * all experts, 1 + history], a buffer (see kernels/ops.def); NULL unless the recipe is delayed */
    Param *state;
    struct QuantKept *kept; /* the weight's FP8 values for all passes of a step */
} Quantiser;

/* Returns NULL if spec.format is QUANT_OFF after spec.rules have been applied. If the weight has a quantizer, returns
 * it: heads share a weight. `name` is the layer's name. Registers the quantizer's state (param/state.h): at the end of a
 * step, delayed scales are computed from the amaxes of all ranks in the pipeline stage. Every rank holds the states of
 * all experts. With keep_weights, the weight is cast whenever parameters change, unless GEMMs are emulated. */
const Quantiser *quantize_new(Registry *, const char *name, Param *weight, QuantSpec);
/* Returns the reason why a layer's GEMMs, with x [rows, in] and w [out, in] on this rank, are emulated. The
 * text can be used as the end of a message. Returns NULL if the GEMMs are not emulated. */
const char *quantize_emulation(const Device *, QuantSpec, int64_t rows, int64_t in, int64_t out);
/* Returns the number of layers in the registry that have FP8 GEMMs. Sets *emulation to the reason why GEMMs
 * over `tokens` tokens are emulated, or to NULL if they are not emulated. */
int64_t quantize_layers(const Registry *, int64_t tokens, const char **emulation);
/* Rows of x or dy that are grouped by expert (kernels/ops.def, src/ops/grouped_gemm.c). In the functions below, NULL
 * means that x has one matrix, or is a weight. */
typedef struct QuantRows {
    Tensor *offset, *padded; /* I64 [experts + 1] */
} QuantRows;

/* Returns the state [matrices, 1 + history] that quantizes x in this forward pass, or in this node's backward pass. x
 * is this rank's part of an operand whose SPMD type is `type`. Returns NULL if there is no quantizer, or if scales
 * are blockwise. In a training step, quantize_state adds the amax of x to the history or, if `values` is true,
 * quantize_values does. */
Tensor *quantize_state(Tape *, const Quantiser *, QuantRole, Tensor *x, const QuantRows *, SpmdType type,
                       bool values);
/* Returns x as an operand of an emulated FP8 GEMM, which sums over x's rows (tokens) or columns. The operand is
 * an fp32 tensor, which the caller must free with tape_drop. If there is no quantizer, returns x itself. */
typedef enum QuantSum { QUANT_OVER_COLUMNS, QUANT_OVER_ROWS } QuantSum;
Tensor *quantize_run(Tape *, const Quantiser *, QuantRole, Tensor *x, Tensor *state, QuantSum);

/* FP8 values of x or of its transpose. The transpose is needed because FP8 GEMMs sum over the columns of both
 * operands. */
typedef struct QuantOperand {
    Tensor *values, *inverse; /* NULL if not requested */
    Fp8Blocks blocks;
} QuantOperand;
typedef struct QuantValues {
    /* indexed by QuantSum: operands for sums over the columns of x, and for sums over the rows of x */
    QuantOperand by[2];
    /* a mask of 1 << QuantSum: the operands that, with their inverses, quantize_drop does not free */
    unsigned kept;
} QuantValues;
/* The requested operands, as masks of 1 << QuantSum. If a tensor has one scale, or its rows are grouped by expert, one pass over x computes both
 * operands. */
typedef struct QuantWanted {
    unsigned sums;
    /* the subset of `sums` whose operands live as long as x (tape_tensor); only for tensors with one scale */
    unsigned kept;
    /* whether this is the first cast of x in the pass; only the first cast adds the amax to the history */
    bool first;
} QuantWanted;
/* Computes the requested operands. The caller must free the result with quantize_drop. */
QuantValues quantize_values(Tape *, const Quantiser *, QuantRole, Tensor *x, const QuantRows *, Tensor *state,
                            QuantWanted);
void quantize_drop(Tape *, QuantValues *);

/* Computes c = a b^T + bias [n], and the activation of c. The bias and the activation may be NULL. The result
 * overwrites c or is added to c. If `fast` is true, sums may be less precise than fp32, as in Transformer
 * Engine's forward pass. */
typedef struct QuantGemm {
    QuantOperand a, b;
    Tensor *bias, *c, *act;
    Activation activation;
    bool fast;
} QuantGemm;
void quantize_multiply(Tape *, const QuantGemm *);
