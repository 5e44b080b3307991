/* Computes dropout factors as kernels/cpu/dropout.h does: element i of a site uses philox_u32(seed, site, i). */
#pragma once

#include <math.h>

#include "base/philox.h"
#include "kernels/cuda/common.cuh"

template <typename R> struct Drop {
    uint64_t seed, site;
    uint32_t highest_dropped;
    R scale; /* factor of kept elements */

    __device__ __forceinline__ bool keeps(uint32_t word) const { return word > highest_dropped; }
    __device__ __forceinline__ R factor(uint32_t word) const { return keeps(word) ? scale : 0; }
};

/* Requires 0 < rate <= 1. */
template <typename R> static inline Drop<R> drop_of(const DropoutAttr *a) {
    CHECK(a->rate > 0 && a->rate <= 1, "dropout: the rate %g is not in (0, 1]", a->rate);
    const Drop<R> d = {a->seed, a->site, (uint32_t)(ceil(a->rate * 0x1p32) - 1),
                       a->rate < 1 ? (R)(1 / (1 - a->rate)) : 0};
    return d;
}
