/* The state of a Quantiser between passes: delayed scales, which follow from the amaxes when a step ends, and
 * the FP8 values of weights, which are computed whenever parameters change. For fp8.c, which quantises the
 * operands of a pass. */
#pragma once

#include "ops/fp8.h"

typedef struct QuantKept {
    QuantValues values; /* without memory if no values are kept */
    Tensor values_at[2], inverse_at[2], state;
    char *block;
    size_t bytes;
} QuantKept;

Fp8Type quantize_type(const Quantiser *, QuantRole);
Fp8Blocks quantize_blocks(const Quantiser *, QuantRole);
/* The delayed state [1 + history] of a role. */
Tensor quantize_row(const Quantiser *, QuantRole);
/* The integer type as which ranks compare a state's numbers. No number is negative, so the order of their bits is the
 * order of the numbers. NCCL has no maximum of floats that keeps NaN. */
DType quantize_bits(const Tensor *state);
Fp8ScaleAttr quantize_scale_attr(const Quantiser *, QuantRole, int64_t margin);
