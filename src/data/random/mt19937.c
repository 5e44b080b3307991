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

static inline uint32_t twist(uint32_t x, uint32_t next, uint32_t far) {
    const uint32_t y = (x & 0x80000000u) | (next & 0x7fffffffu);
    return far ^ y >> 1 ^ (-(y & 1) & 0x9908b0dfu);
}

static void refill(Mt19937 *g) {
    uint32_t *x = g->state;
    for (int i = 0; i < N - M; i++) x[i] = twist(x[i], x[i + 1], x[i + M]);
    for (int i = N - M; i < N - 1; i++) x[i] = twist(x[i], x[i + 1], x[i + M - N]);
    x[N - 1] = twist(x[N - 1], x[0], x[M - 1]);
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

enum { SWAPS = 64 };

/* Draws bounded(last), bounded(last - 1), ... down to bounded(1), but at most SWAPS numbers. Returns the number of
 * draws. A rejected draw costs no mispredicted branch, because the next draw overwrites it. */
static int draw_places(Mt19937 *g, int64_t last, int64_t place[SWAPS]) {
    const int n = last < SWAPS ? (int)last : SWAPS;
    for (int k = 0; k < n;) {
        const uint64_t max = (uint64_t)(last - k), mask = ~0ull >> __builtin_clzll(max);
        place[k] = (int64_t)((max <= UINT32_MAX ? mt19937_u32(g) : u64(g)) & mask);
        k += (uint64_t)place[k] <= max;
    }
    return n;
}

/* Draws the positions for many swaps before the first swap, so that the swaps' memory accesses overlap. */
#define SHUFFLE(g, a, n)                                                                                     \
    do {                                                                                                     \
        int64_t place[SWAPS];                                                                                \
        for (int64_t last = (n)-1, drawn; last > 0; last -= drawn) {                                         \
            drawn = draw_places(g, last, place);                                                             \
            for (int64_t k = 0; k < drawn; k++) __builtin_prefetch((a) + place[k], 1);                       \
            for (int64_t k = 0; k < drawn; k++) {                                                            \
                const int64_t old = (a)[last - k];                                                           \
                (a)[last - k] = (a)[place[k]];                                                               \
                (a)[place[k]] = (__typeof__(*(a)))old;                                                       \
            }                                                                                                \
        }                                                                                                    \
    } while (0)

void mt19937_shuffle_i32(Mt19937 *g, int32_t *a, int64_t n) { SHUFFLE(g, a, n); }
void mt19937_shuffle_u32(Mt19937 *g, uint32_t *a, int64_t n) { SHUFFLE(g, a, n); }
void mt19937_shuffle_i64(Mt19937 *g, int64_t *a, int64_t n) { SHUFFLE(g, a, n); }

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
