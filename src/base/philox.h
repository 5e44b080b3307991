/* Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"
 * (SC11). Every random number in a run (init, dropout, routing jitter, sampling) is a pure function of (seed,
 * site, index). `site` is the hash of a tensor's or op's name, combined with the step and microbatch numbers.
 * `index` is the element's global index. Random numbers therefore do not depend on the parallel layout, the
 * microbatch size, or recomputation. */
#pragma once

#include <math.h>
#include <stdint.h>

#include "base/host_device.h"

typedef struct Philox4 {
    uint32_t v[4];
} Philox4;

HOST_DEVICE static inline uint64_t philox_product(uint32_t a, uint32_t b) {
#ifdef __CUDA_ARCH__
    /* Inline PTX, because nvcc compiles a plain product to code with unnecessary additions of zero. */
    uint64_t ab;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(ab) : "r"(a), "r"(b));
    return ab;
#else
    return (uint64_t)a * b;
#endif
}

HOST_DEVICE static inline Philox4 philox4x32(uint64_t seed, uint64_t site, uint64_t block) {
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    Philox4 c = {{(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)site, (uint32_t)(site >> 32)}};
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = philox_product(0xD2511F53u, c.v[0]), p1 = philox_product(0xCD9E8D57u, c.v[2]);
        const Philox4 next = {{(uint32_t)(p1 >> 32) ^ c.v[1] ^ k0, (uint32_t)p1,
                               (uint32_t)(p0 >> 32) ^ c.v[3] ^ k1, (uint32_t)p0}};
        c = next;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c;
}

/* Returns 32 random bits for element `index`: word index % 4 of block index / 4. */
HOST_DEVICE static inline uint32_t philox_u32(uint64_t seed, uint64_t site, uint64_t index) {
    return philox4x32(seed, site, index / 4).v[index % 4];
}

/* Returns a uniform 53-bit random number in (0, 1). */
HOST_DEVICE static inline double philox_uniform(uint64_t seed, uint64_t site, uint64_t index) {
    Philox4 p = philox4x32(seed, site, index / 2);
    uint64_t bits = (uint64_t)p.v[index % 2 * 2] << 32 | p.v[index % 2 * 2 + 1];
    return ((double)(bits >> 11) + 0.5) * 0x1p-53;
}

/* Computes two standard normal random numbers, elements 2 * pair and 2 * pair + 1, by the Box-Muller method. */
HOST_DEVICE static inline void philox_normal_pair(uint64_t seed, uint64_t site, uint64_t pair,
                                                  double out[2]) {
    Philox4 p = philox4x32(seed, site, pair);
    double u = ((double)(((uint64_t)p.v[0] << 32 | p.v[1]) >> 11) + 0.5) * 0x1p-53;
    double angle = 6.283185307179586476925 * ((double)(((uint64_t)p.v[2] << 32 | p.v[3]) >> 11) * 0x1p-53);
    double radius = sqrt(-2.0 * log(u));
    out[0] = radius * cos(angle);
    out[1] = radius * sin(angle);
}

HOST_DEVICE static inline double philox_normal(uint64_t seed, uint64_t site, uint64_t index) {
    double pair[2];
    philox_normal_pair(seed, site, index / 2, pair);
    return pair[index % 2];
}
