/* MT19937 (Matsumoto and Nishimura, 1998) as in numpy.random.RandomState and torch.Generator("cpu"): both
 * seed it with 32 bits by Knuth's recurrence and draw tempered 32-bit words. Megatron-LM shuffles documents
 * and samples with numpy's, and the epochs of the cyclic sampler with torch's. The draws of both are
 * reproduced exactly. */
#pragma once

#include <stdint.h>

typedef struct Mt19937 {
    uint32_t state[624];
    int next; /* words of `state` already used */
} Mt19937;

void mt19937_seed(Mt19937 *, uint32_t seed);
uint32_t mt19937_u32(Mt19937 *);
/* Uniform in [0, max], by masked rejection like numpy's random_interval. If max > 2^32 - 1, draws 64 bits,
 * the high word first. */
uint64_t mt19937_bounded(Mt19937 *, uint64_t max);

/* RandomState.random(): 53 bits in [0, 1), from two words. */
double mt19937_double(Mt19937 *);
/* RandomState.geometric(p) for 0 < p < 1/3, by inversion. */
int64_t mt19937_geometric(Mt19937 *, double p);

/* RandomState.shuffle of a one-dimensional array: for i = n-1 .. 1 swap with bounded(i). */
void mt19937_shuffle_i32(Mt19937 *, int32_t *, int64_t n);
void mt19937_shuffle_i64(Mt19937 *, int64_t *, int64_t n);
void mt19937_shuffle_u32(Mt19937 *, uint32_t *, int64_t n);

/* torch.randperm(n, generator=torch.Generator().manual_seed(seed)) on the CPU (ATen's randperm_cpu): for i =
 * 0 .. n-2 swap with i + u32 % (n - i). For n >= (2^32 - 1) / 20, where 32 bits would be too biased, it is
 * the inside-out shuffle with u64 % (i + 1), high word first. */
void mt19937_torch_randperm(uint32_t seed, int64_t *out, int64_t n);
