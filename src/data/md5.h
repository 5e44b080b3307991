/* MD5 (RFC 1321). Not for security: Megatron-LM names the files of its index cache by the MD5 of a JSON
 * description, and a cache is shared between the two programs only if the names agree. */
#pragma once

#include <stddef.h>

/* 32 lower-case hexadecimal digits and a NUL. */
void md5_hex(const void *bytes, size_t n, char out[33]);
