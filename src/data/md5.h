/* MD5 (RFC 1321), not used for security. Megatron-LM names its index cache files after the MD5 of a JSON description.
 * Isotron and Megatron-LM can share a cache only if the names are equal. */
#pragma once

#include <stddef.h>

/* Writes the MD5 of n bytes as 32 lower-case hexadecimal digits and a NUL. */
void md5_hex(const void *bytes, size_t n, char out[33]);
