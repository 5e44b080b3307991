/* Unicode versions: the `tokenizers` library matches regexes with Unicode 16 and normalizes with Unicode 9,
 * regardless of the versions of the machine's PCRE2 and utf8proc. Source: tools/oracle/unicode_ages.py. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* A character of Unicode 14 with the same general category, script and UTF-8 length as a newer one, or as one
 * whose category has changed; else `c`. */
uint32_t age_stand_in(uint32_t c);
/* True for characters that Unicode 9 does not define, which normalization therefore leaves unchanged. */
bool age_unordered(uint32_t c);
/* The lower case of an upper-case letter that is newer than utf8proc; else `c`. */
uint32_t age_lower(uint32_t c);

/* Classes of the original's normalizers and pre-tokenizers, in their versions of Unicode. */
bool age_is_control(uint32_t c);     /* Cc, Cf and Co, except line ends and tabs */
bool age_is_punctuation(uint32_t c); /* P, and the symbols of ASCII */
bool age_is_nonspacing(uint32_t c);  /* Mn */
bool age_is_mark(uint32_t c);        /* M */
