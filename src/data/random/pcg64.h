/* numpy.random.default_rng: PCG64 (O'Neill, "PCG: a family of simple fast space-efficient statistically good
 * algorithms", 2014; the XSL-RR 128/64 member) seeded through numpy's SeedSequence. Megatron-LM's mock dataset draws
 * its document lengths from this generator. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct Pcg64 {
    unsigned __int128 state, inc;
    bool has_half; /* true if `half` holds the high word of a 64-bit output, for the next 32-bit draw */
    uint32_t half;
} Pcg64;

void pcg64_seed(Pcg64 *, uint32_t seed); /* seeds like PCG64(SeedSequence(seed)) */
uint64_t pcg64_u64(Pcg64 *);
/* Returns the low word of a 64-bit output; the next call returns its high word. */
uint32_t pcg64_u32(Pcg64 *);
/* Returns Generator.integers(low, high, dtype=int32) for low < high, by Lemire's multiply-shift rejection with 32-bit
 * draws. */
int32_t pcg64_integer(Pcg64 *, int32_t low, int32_t high);
