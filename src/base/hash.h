/* Content hashes, computed with XXH3 from the xxHash library. Names and keys use 64-bit hashes; checkpoint content uses
 * 128-bit hashes. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct Hash128 {
    uint64_t hi, lo;
} Hash128;

uint64_t hash64(const void *bytes, size_t n, uint64_t seed);
uint64_t hash_name(const char *name); /* hash64 of the characters, with seed 0 */
Hash128 hash128(const void *bytes, size_t n);
/* Computes the hash128 of bytes that arrive in pieces. hash128_end also frees the stream. */
typedef struct HashStream HashStream;
HashStream *hash128_begin(void);
void hash128_add(HashStream *, const void *bytes, size_t n);
Hash128 hash128_end(HashStream *);
/* Writes the hash as 32 lower-case hexadecimal digits and a NUL. */
void hash_hex(Hash128, char out[33]);
