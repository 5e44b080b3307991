#include "data/random/pcg64.h"

#include "base/fault.h"

typedef unsigned __int128 u128;

#define U128(high, low) ((u128)(high##ull) << 64 | (low##ull))

/* SeedSequence (numpy/random/bit_generator.pyx) hashes the entropy words into a pool of four words and mixes
 * the pool with itself. SeedSequence's generate_state then hashes the pool into as many words as the generator
 * needs. */
enum { POOL = 4, WORDS = 8 };

static uint32_t hash_word(uint32_t value, uint32_t *constant, uint32_t multiplier) {
    value ^= *constant;
    *constant *= multiplier;
    value *= *constant;
    return value ^ value >> 16;
}

static uint32_t mix(uint32_t x, uint32_t y) {
    uint32_t r = 0xca01f9ddu * x - 0x4973f715u * y;
    return r ^ r >> 16;
}

static void seed_words(uint32_t seed, uint32_t out[WORDS]) {
    uint32_t pool[POOL], constant = 0x43b0d7e5u;
    for (int i = 0; i < POOL; i++) pool[i] = hash_word(i ? 0 : seed, &constant, 0x931e8875u);
    for (int from = 0; from < POOL; from++)
        for (int to = 0; to < POOL; to++)
            if (from != to) pool[to] = mix(pool[to], hash_word(pool[from], &constant, 0x931e8875u));
    constant = 0x8b51f9ddu;
    for (int i = 0; i < WORDS; i++) out[i] = hash_word(pool[i % POOL], &constant, 0x58f38dedu);
}

static void step(Pcg64 *g) { g->state = g->state * U128(0x2360ed051fc65da4, 0x4385df649fccf645) + g->inc; }

void pcg64_seed(Pcg64 *g, uint32_t seed) {
    uint32_t w[WORDS];
    seed_words(seed, w);
    uint64_t v[4];
    for (int i = 0; i < 4; i++) v[i] = w[2 * i] | (uint64_t)w[2 * i + 1] << 32;
    *g = (Pcg64){.inc = ((u128)v[2] << 64 | v[3]) << 1 | 1};
    step(g);
    g->state += (u128)v[0] << 64 | v[1];
    step(g);
}

uint64_t pcg64_u64(Pcg64 *g) {
    step(g);
    uint64_t x = (uint64_t)(g->state >> 64) ^ (uint64_t)g->state;
    unsigned rotate = (unsigned)(g->state >> 122);
    return x >> rotate | x << (-rotate & 63);
}

uint32_t pcg64_u32(Pcg64 *g) {
    if (g->has_half) {
        g->has_half = false;
        return g->half;
    }
    uint64_t x = pcg64_u64(g);
    g->has_half = true;
    g->half = (uint32_t)(x >> 32);
    return (uint32_t)x;
}

int32_t pcg64_integer(Pcg64 *g, int32_t low, int32_t high) {
    CHECK(low < high, "there is no integer in [%d, %d)", low, high);
    uint32_t span = (uint32_t)high - (uint32_t)low;
    if (span == 1) return low; /* numpy draws no random number if only one value is possible */
    uint64_t m = (uint64_t)pcg64_u32(g) * span;
    if ((uint32_t)m < span) {
        uint32_t threshold = -span % span;
        while ((uint32_t)m < threshold) m = (uint64_t)pcg64_u32(g) * span;
    }
    return (int32_t)((uint32_t)low + (uint32_t)(m >> 32));
}
