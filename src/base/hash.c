#include "base/hash.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "base/fault.h"

uint64_t hash64(const void *bytes, size_t n, uint64_t seed) { return XXH3_64bits_withSeed(bytes, n, seed); }

uint64_t hash_name(const char *name) { return hash64(name, strlen(name), 0); }

static Hash128 both(XXH128_hash_t h) { return (Hash128){h.high64, h.low64}; }

Hash128 hash128(const void *bytes, size_t n) { return both(XXH3_128bits(bytes, n)); }

/* Starts a hash stream. A HashStream is xxHash's XXH3_state_t. */
HashStream *hash128_begin(void) {
    XXH3_state_t *s = XXH3_createState();
    CHECK(s, "no memory for a hash");
    XXH3_128bits_reset(s);
    return (HashStream *)s;
}

void hash128_add(HashStream *s, const void *bytes, size_t n) {
    XXH3_128bits_update((XXH3_state_t *)s, bytes, n);
}

Hash128 hash128_end(HashStream *s) {
    const Hash128 h = both(XXH3_128bits_digest((XXH3_state_t *)s));
    XXH3_freeState((XXH3_state_t *)s);
    return h;
}

void hash_hex(Hash128 h, char out[33]) {
    snprintf(out, 33, "%016llx%016llx", (unsigned long long)h.hi, (unsigned long long)h.lo);
}
