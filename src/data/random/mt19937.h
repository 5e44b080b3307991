/* MT19937 (Matsumoto and Nishimura, 1998) as in numpy.random.RandomState and torch.Generator("cpu"): both
 * seed the generator with 32 bits by Knuth's recurrence and draw tempered 32-bit words. Megatron-LM shuffles documents
 * and samples with numpy's generator, and the cyclic sampler's epochs with torch's. This code reproduces the draws of
 * both exactly. */
#pragma once

#include <stdint.h>

typedef struct Mt19937 {
    uint32_t state[624];
    int next; /* how many words of `state` have been used */
} Mt19937;

void mt19937_seed(Mt19937 *, uint32_t seed);
uint32_t mt19937_u32(Mt19937 *);
/* Returns a uniformly random integer in [0, max], by masked rejection as in numpy's random_interval. If max > 2^32 - 1,
 * draws 64 bits, the high word first. */
uint64_t mt19937_bounded(Mt19937 *, uint64_t max);

/* Returns RandomState.random(), a multiple of 2^-53 in [0, 1), computed from two words. */
double mt19937_double(Mt19937 *);
/* Returns RandomState.geometric(p) for 0 < p < 1/3, computed by inversion. */
int64_t mt19937_geometric(Mt19937 *, double p);

/* Shuffles a one-dimensional array like RandomState.shuffle: for i = n-1 .. 1, swaps element i with element
 * bounded(i). */
void mt19937_shuffle_i32(Mt19937 *, int32_t *, int64_t n);
void mt19937_shuffle_i64(Mt19937 *, int64_t *, int64_t n);
void mt19937_shuffle_u32(Mt19937 *, uint32_t *, int64_t n);

/* Computes torch.randperm(n, generator=torch.Generator().manual_seed(seed)) on the CPU (ATen's randperm_cpu).
 * For i = 0 .. n-2, element i is swapped with element i + u32 % (n - i). If n >= (2^32 - 1) / 20, 32-bit
 * draws would be too biased, so torch uses the inside-out shuffle with u64 % (i + 1), where the high word of
 * u64 is drawn first. */
void mt19937_torch_randperm(uint32_t seed, int64_t *out, int64_t n);
