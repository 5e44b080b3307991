/* MT19937 with the recurrence x[k+624] = x[k+397] ^ twist(x[k], x[k+1]) and the tempering of mt19937ar. */
#include "data/random/mt19937.h"

#include <math.h>

enum { N = 624, M = 397 };

void mt19937_seed(Mt19937 *g, uint32_t seed) {
    g->state[0] = seed;
    for (uint32_t i = 1; i < N; i++)
        g->state[i] = 1812433253u * (g->state[i - 1] ^ g->state[i - 1] >> 30) + i;
    g->next = N;
}

static void refill(Mt19937 *g) {
    uint32_t *x = g->state;
    for (int i = 0; i < N; i++) {
        uint32_t y = (x[i] & 0x80000000u) | (x[(i + 1) % N] & 0x7fffffffu);
        x[i] = x[(i + M) % N] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0);
    }
    g->next = 0;
}

uint32_t mt19937_u32(Mt19937 *g) {
    if (g->next == N) refill(g);
    uint32_t y = g->state[g->next++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

static uint64_t u64(Mt19937 *g) {
    uint64_t high = mt19937_u32(g);
    return high << 32 | mt19937_u32(g);
}

uint64_t mt19937_bounded(Mt19937 *g, uint64_t max) {
    if (!max) return 0;
    uint64_t mask = ~0ull >> __builtin_clzll(max), value;
    do value = (max <= UINT32_MAX ? mt19937_u32(g) : u64(g)) & mask;
    while (value > max);
    return value;
}

double mt19937_double(Mt19937 *g) {
    uint32_t high = mt19937_u32(g) >> 5, low = mt19937_u32(g) >> 6;
    return (high * 67108864.0 + low) / 9007199254740992.0;
}

int64_t mt19937_geometric(Mt19937 *g, double p) {
    return (int64_t)ceil(log1p(-mt19937_double(g)) / log(1 - p));
}

void mt19937_shuffle_i32(Mt19937 *g, int32_t *a, int64_t n) {
    for (int64_t i = n - 1; i > 0; i--) {
        uint64_t j = mt19937_bounded(g, (uint64_t)i);
        int32_t t = a[i];
        a[i] = a[j], a[j] = t;
    }
}

/* An unsigned array may be accessed through its signed type (C11 6.5 p7). */
void mt19937_shuffle_u32(Mt19937 *g, uint32_t *a, int64_t n) { mt19937_shuffle_i32(g, (int32_t *)a, n); }

void mt19937_shuffle_i64(Mt19937 *g, int64_t *a, int64_t n) {
    for (int64_t i = n - 1; i > 0; i--) {
        uint64_t j = mt19937_bounded(g, (uint64_t)i);
        int64_t t = a[i];
        a[i] = a[j], a[j] = t;
    }
}

void mt19937_torch_randperm(uint32_t seed, int64_t *out, int64_t n) {
    Mt19937 g;
    mt19937_seed(&g, seed);
    if (n >= UINT32_MAX / 20) {
        for (int64_t i = 0; i < n; i++) {
            int64_t j = (int64_t)(u64(&g) % (uint64_t)(i + 1));
            if (j < i) out[i] = out[j];
            out[j] = i;
        }
        return;
    }
    for (int64_t i = 0; i < n; i++) out[i] = i;
    for (int64_t i = 0; i < n - 1; i++) {
        int64_t j = i + (int64_t)(mt19937_u32(&g) % (uint64_t)(n - i)), t = out[i];
        out[i] = out[j], out[j] = t;
    }
}
