/* The values that a Quantiser keeps between passes: delayed scales, which are computed from amaxes at the end
 * of a step, and the FP8 values of weights, which are computed whenever parameters change. fp8.c quantizes
 * operands with these scales and values. */
#pragma once

#include "ops/fp8.h"

typedef struct QuantKept {
    QuantValues values; /* data is NULL if no values are kept */
    Tensor values_at[2], inverse_at[2], state;
    char *block;
    size_t bytes;
} QuantKept;

Fp8Type quantize_type(const Quantiser *, QuantRole);
Fp8Blocks quantize_blocks(const Quantiser *, QuantRole);
/* Returns a role's delayed states [matrices, 1 + history]. */
Tensor quantize_row(const Quantiser *, QuantRole);
/* Returns the integer type in which ranks compute the maximum of a state's numbers. Integers are used because
 * NCCL's maximum of floats does not preserve NaN. The numbers are not negative, so they have the same order as
 * their bit patterns. */
DType quantize_bits(const Tensor *state);
Fp8ScaleAttr quantize_scale_attr(const Quantiser *, QuantRole, int64_t margin);
