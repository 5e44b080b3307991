#include "base/hash.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

uint64_t hash64(const void *bytes, size_t n, uint64_t seed) { return XXH3_64bits_withSeed(bytes, n, seed); }

uint64_t hash_name(const char *name) { return hash64(name, strlen(name), 0); }

Hash128 hash128(const void *bytes, size_t n) {
    XXH128_hash_t h = XXH3_128bits(bytes, n);
    return (Hash128){h.high64, h.low64};
}

void hash_hex(Hash128 h, char out[33]) {
    snprintf(out, 33, "%016llx%016llx", (unsigned long long)h.hi, (unsigned long long)h.lo);
}
