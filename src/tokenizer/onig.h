/* Oniguruma (Ruby syntax) to PCRE2: the rewriting that regex.h describes. */
#ifndef ISOTRON_TOKENIZER_ONIG_H
#define ISOTRON_TOKENIZER_ONIG_H

#include <stddef.h>

#include "base/err.h"
#include "base/str.h"

/* The length of what an error message shows of a pattern, which need not end in NUL. */
static inline int onig_shown(size_t n) { return n < 200 ? (int)n : 200; }

/* Appends the PCRE2 pattern (for PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE). Errors: something without an exact
 * equal. */
Err onig_to_pcre2(const char *pattern, size_t n, Str *out);

#endif
