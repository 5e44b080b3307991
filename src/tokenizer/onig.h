/* Oniguruma (Ruby syntax) to PCRE2: the rewriting that regex.h describes. */
#ifndef ISOTRON_TOKENIZER_ONIG_H
#define ISOTRON_TOKENIZER_ONIG_H

#include <stddef.h>

#include "base/err.h"
#include "base/str.h"

/* Appends the PCRE2 pattern (for PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE). Errors: something without an exact
 * equal. */
Err onig_to_pcre2(const char *pattern, size_t n, Str *out);

#endif
