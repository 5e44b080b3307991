#include "tensor/fp8.h"

#include "tensor/float_bits.h"

/* From the highest bit down, an FP8 number consists of a sign, an exponent and a mantissa. `fields` is a
 * float's exponent bias minus the FP8 type's exponent bias. */
static const struct {
    int mantissa;
    uint32_t fields, largest;
    float smallest_normal;
} FORMATS[] = {
    [E4M3] = {3, 127 - 7, 0x7e, 0x1p-6f},
    [E5M2] = {2, 127 - 15, 0x7b, 0x1p-14f},
};

uint8_t fp8_from_float(Fp8Type t, float x) {
    const uint32_t u = float_bits(x), sign = u >> 24 & 0x80, mag = u & 0x7fffffffu;
    const int shift = 23 - FORMATS[t].mantissa;
    if (mag > 0x7f800000u) return 0x7f;
    uint32_t code;
    /* for a subnormal, a float addition performs the rounding */
    if (float_of_bits(mag) < FORMATS[t].smallest_normal) {
        const float magic = FORMATS[t].smallest_normal * (float)(1 << shift);
        code = float_bits(float_of_bits(mag) + magic) - float_bits(magic);
    } else
        code = (mag - (FORMATS[t].fields << 23) + (1u << (shift - 1)) - 1 + (mag >> shift & 1)) >> shift;
    return (uint8_t)(sign | (code < FORMATS[t].largest ? code : FORMATS[t].largest));
}

float fp8_to_float(Fp8Type t, uint8_t code) {
    const int shift = 23 - FORMATS[t].mantissa;
    const uint32_t sign = (uint32_t)(code & 0x80) << 24, mag = code & 0x7f;
    if (t == E5M2 && mag == 0x7c) return float_of_bits(sign | 0x7f800000u);
    if (mag > FORMATS[t].largest) return float_of_bits(sign | 0x7fc00000u);
    if (mag >> FORMATS[t].mantissa) return float_of_bits(sign | ((mag << shift) + (FORMATS[t].fields << 23)));
    const float least = FORMATS[t].smallest_normal / (float)(1 << FORMATS[t].mantissa);
    return float_of_bits(sign | float_bits((float)mag * least));
}

float fp8_max(Fp8Type t) { return fp8_to_float(t, (uint8_t)FORMATS[t].largest); }

double fp8_roundoff(Fp8Type t) { return 0.5 / (1 << FORMATS[t].mantissa); }
