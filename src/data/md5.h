/* MD5 (RFC 1321), not used for security. Megatron-LM names the files of its index cache by the MD5 of a JSON
 * description. The two programs share a cache only if the names agree. */
#pragma once

#include <stddef.h>

/* Writes 32 lower-case hexadecimal digits and a NUL. */
void md5_hex(const void *bytes, size_t n, char out[33]);
