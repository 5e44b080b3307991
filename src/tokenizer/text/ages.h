/* Handles differences between versions of Unicode. The `tokenizers` library matches regexes with Unicode 16 and
 * normalizes with Unicode 9. These functions make results independent of the Unicode versions of the installed
 * PCRE2 and utf8proc. Source: tools/oracle/unicode_ages.py. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* If `c` is newer than Unicode 14, or if its category has changed since Unicode 14, returns an older character
 * with the same category, script and UTF-8 length. Returns other characters unchanged. */
uint32_t age_stand_in(uint32_t c);
/* Returns true if Unicode 9 does not define the character. Normalization leaves such characters unchanged. */
bool age_unordered(uint32_t c);
/* Returns the lower-case form of an upper-case letter that utf8proc does not support, and `c` for other
 * characters. */
uint32_t age_lower(uint32_t c);

/* Character classes of the `tokenizers` library's normalizers and pre-tokenizers. Each class follows the
 * Unicode version that the library uses for it. */
bool age_is_control(uint32_t c);     /* the categories Cc, Cf and Co, except line ends and tabs */
bool age_is_punctuation(uint32_t c); /* the category P (punctuation), and the symbols of ASCII */
bool age_is_nonspacing(uint32_t c);  /* the category Mn (nonspacing marks) */
bool age_is_mark(uint32_t c);        /* the category M (all marks) */
