/* Converts Oniguruma patterns (Ruby syntax) to PCRE2 patterns, as described in regex.h. */
#pragma once

#include <stddef.h>

#include "base/err.h"
#include "base/str.h"

/* Returns how many bytes of an n-byte pattern an error message prints. The pattern need not be NUL-terminated. */
static inline int onig_shown(size_t n) { return n < 200 ? (int)n : 200; }

/* Appends the PCRE2 pattern (for PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE). Returns an error for syntax that has no
 * exact equivalent. */
Err onig_to_pcre2(const char *pattern, size_t n, Str *out);
