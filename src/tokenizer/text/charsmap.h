/* SentencePiece's precompiled_charsmap: rules that replace a few characters by others, as a double-array trie
 * (darts-clone) and the replacements. Source: sentencepiece/src/normalizer.cc; darts.h, class DoubleArrayUnit. */
#pragma once

#include <stddef.h>

#include "base/err.h"

typedef struct Charsmap Charsmap;

/* Copies the bytes. Errors: a size that contradicts the file, replacements that are not UTF-8. */
Err charsmap_load(const void *bytes, size_t n, Charsmap **out);
void charsmap_free(Charsmap *); /* NULL is fine */

typedef enum CharsmapRule { CHARSMAP_SHORTEST, CHARSMAP_LONGEST } CharsmapRule;
/* Bytes of the shortest or longest rule at the beginning of the text, and its replacement (borrowed); 0: no
 * rule applies. */
size_t charsmap_find(const Charsmap *, CharsmapRule, const char *text, size_t n, const char **to,
                     size_t *to_n);
