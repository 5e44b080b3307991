/* Converts a float to the integer that its bits represent, and back, and widens 16-bit types. The compiler
 * vectorizes loops that call these functions. */
#pragma once

#include <stdint.h>
#include <string.h>

static inline uint32_t float_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float float_of_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline float float_of_bf16(uint16_t h) { return float_of_bits((uint32_t)h << 16); }

/* Does not support NaN, which scaled E4M3 values never contain. */
static inline float float_of_e4m3(uint8_t q) {
    return float_of_bits((uint32_t)(q & 0x80) << 24 | (uint32_t)(q & 0x7f) << 20) * 0x1p120f;
}

static inline float float_of_f16(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, mag = h & 0x7fff;
    const uint32_t special = 0x7f800000u | (mag & 0x3ff) << 13, normal = (mag << 13) + 0x38000000u,
                   subnormal = float_bits((float)(int32_t)mag * 0x1p-24f);
    return float_of_bits(sign | (mag >= 0x7c00 ? special : mag < 0x400 ? subnormal : normal));
}
