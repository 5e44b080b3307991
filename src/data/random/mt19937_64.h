/* C++'s std::mt19937_64 (Nishimura and Matsumoto, 2000). Megatron-LM uses it to shuffle the samples of masked
 * datasets. */
#pragma once

#include <stdint.h>

typedef struct Mt19937x64 {
    uint64_t state[312];
    int next; /* how many words of `state` have been used */
} Mt19937x64;

void mt19937_64_seed(Mt19937x64 *, uint64_t seed);
uint64_t mt19937_64_u64(Mt19937x64 *);
