/* Base64 (RFC 4648, section 4) to bytes and back. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/str.h"

/* Appends the bytes; false if the text is not base64. */
bool base64_decode(const char *text, size_t n, Str *out);
/* Appends the text. */
void base64_encode(const char *bytes, size_t n, Str *out);
