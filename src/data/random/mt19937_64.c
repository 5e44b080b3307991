#include "data/random/mt19937_64.h"

enum { N = 312, M = 156 };

void mt19937_64_seed(Mt19937x64 *g, uint64_t seed) {
    g->state[0] = seed;
    for (uint64_t i = 1; i < N; i++)
        g->state[i] = 6364136223846793005u * (g->state[i - 1] ^ g->state[i - 1] >> 62) + i;
    g->next = N;
}

static void refill(Mt19937x64 *g) {
    uint64_t *x = g->state;
    for (int i = 0; i < N; i++) {
        uint64_t y = (x[i] & 0xffffffff80000000u) | (x[(i + 1) % N] & 0x7fffffffu);
        x[i] = x[(i + M) % N] ^ y >> 1 ^ (y & 1 ? 0xb5026f5aa96619e9u : 0);
    }
    g->next = 0;
}

uint64_t mt19937_64_u64(Mt19937x64 *g) {
    if (g->next == N) refill(g);
    uint64_t y = g->state[g->next++];
    y ^= y >> 29 & 0x5555555555555555u;
    y ^= y << 17 & 0x71d67fffeda60000u;
    y ^= y << 37 & 0xfff7eee000000000u;
    return y ^ y >> 43;
}
