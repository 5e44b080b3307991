/* Converts bytes to Base64 (RFC 4648, section 4) and back. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/str.h"

/* Appends the decoded bytes. Returns false if the text is not Base64. */
bool base64_decode(const char *text, size_t n, Str *out);
/* Appends the bytes as Base64. */
void base64_encode(const char *bytes, size_t n, Str *out);
