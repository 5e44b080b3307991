/* Converts valid UTF-8 to a Unicode normalization form or to lower case, in linear time. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tokenizer/text/aligned.h"

/* Appends a normalization form of the text: NFD by default, NFKD with `compat`, NFC with `compose`, and NFKC with
 * both. Composed characters have the origins that the crate unicode_normalization_alignments computes for the
 * `tokenizers` library. */
void unicode_normalize(View text, bool compat, bool compose, Aligned *out);
/* Appends the text with each character's full lower-case mapping, without context (no final sigma). */
void unicode_lower(View text, Aligned *out);
/* Returns the number of bytes in the extended grapheme cluster at the start of the text (Unicode Standard Annex 29). */
size_t unicode_cluster(const char *text, size_t n);
bool unicode_is_space(uint32_t character); /* White_Space */
bool unicode_is_word(uint32_t character);  /* \w of UTS 18: Alphabetic, M, Nd, Pc, Join_Control */
