/* The bits of a float as an integer, and back. */
#ifndef ISOTRON_TENSOR_FLOAT_BITS_H
#define ISOTRON_TENSOR_FLOAT_BITS_H

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

#endif
