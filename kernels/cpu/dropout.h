/* Computes dropout factors. A factor depends on the global index of its element (see DropoutAttr). */
#pragma once

#include "base/philox.h"
#include "kernels/cpu/real.h"

/* The maximum number of elements for which one call draws factors. The elements must fill an even number of
 * Philox blocks. */
enum { DROPOUT_CHUNK = 256 };

/* Sets factor[i], for i in [0, n), to 0 or 1 / (1 - rate) for element first + i. Requires n <= DROPOUT_CHUNK
 * and 0 < rate <= 1. */
static inline void dropout_factors(const DropoutAttr *a, uint64_t first, int64_t n, real *factor) {
    const uint32_t highest_dropped = (uint32_t)(ceil(a->rate * 0x1p32) - 1);
    const real scale = a->rate < 1 ? (real)(1 / (1 - a->rate)) : 0;
    uint32_t word[DROPOUT_CHUNK + 8];
    const uint64_t block = first / 4;
    const int64_t skip = (int64_t)(first % 4), blocks = (skip + n + 3) / 4;
#pragma omp simd
    for (int64_t i = 0; i < blocks; i++) {
        const Philox4 p = philox4x32(a->seed, a->site, block + (uint64_t)i);
        word[4 * i] = p.v[0], word[4 * i + 1] = p.v[1], word[4 * i + 2] = p.v[2], word[4 * i + 3] = p.v[3];
    }
#pragma omp simd
    for (int64_t i = 0; i < n; i++) factor[i] = word[skip + i] > highest_dropped ? scale : 0;
}
