/* The state of a Quantiser between passes: delayed scales, which follow from the amaxes when a step ends, and
 * the FP8 values of weights, which are computed whenever parameters change. For fp8.c, which quantises the
 * operands of a pass. */
#pragma once

#include "ops/fp8.h"

typedef struct QuantKept {
    QuantValues values; /* no memory: none are kept */
    Tensor values_at[2], inverse_at[2], state;
    char *block;
    size_t bytes;
} QuantKept;

Fp8Type quantize_type(const Quantiser *, QuantRole);
Fp8Blocks quantize_blocks(const Quantiser *, QuantRole);
/* The delayed state [1 + history] of a role. */
Tensor quantize_row(const Quantiser *, QuantRole);
/* The integer type in whose order the ranks compare the numbers of a state by their bits. It is the order of the
 * numbers, because none is negative; NCCL has no maximum of floats that keeps NaN. */
DType quantize_bits(const Tensor *state);
Fp8ScaleAttr quantize_scale_attr(const Quantiser *, QuantRole, int64_t margin);
