/* The two 8-bit floats from "FP8 Formats for Deep Learning" (Micikevicius et al., 2022), both with subnormals:
 * - E4M3: bias 7, largest value 448, one NaN pattern for each sign, no infinity
 * - E5M2: bias 15, largest value 57344, IEEE's infinities and NaNs */
#pragma once

#include <stdint.h>

typedef enum Fp8Type { E4M3, E5M2 } Fp8Type;

/* Rounds to nearest, ties to even. Infinity and values that are too large become the largest finite value, as in a
 * GPU's `satfinite` conversions. NaN becomes 0x7f, regardless of its sign. */
uint8_t fp8_from_float(Fp8Type, float);
float fp8_to_float(Fp8Type, uint8_t);
float fp8_max(Fp8Type);
double fp8_roundoff(Fp8Type); /* returns the unit roundoff: 2^-4 for E4M3, 2^-3 for E5M2 */
