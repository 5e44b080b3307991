/* SentencePiece's precompiled_charsmap: rules that replace character sequences. A charsmap consists of a double-array
 * trie (darts-clone) and the replacements. Source: sentencepiece/src/normalizer.cc; darts.h, class DoubleArrayUnit. */
#pragma once

#include <stddef.h>

#include "base/err.h"

typedef struct Charsmap Charsmap;

/* Loads a charsmap, and copies the bytes. Returns an error if the sizes in the charsmap do not match n, or if a
 * replacement is not UTF-8. */
Err charsmap_load(const void *bytes, size_t n, Charsmap **out);
void charsmap_free(Charsmap *); /* NULL is fine */

typedef enum CharsmapRule { CHARSMAP_SHORTEST, CHARSMAP_LONGEST } CharsmapRule;
/* Finds the shortest or longest rule that matches the start of the text. Sets *to to the replacement
 * (borrowed). Returns the number of matched bytes, or 0 if no rule matches. */
size_t charsmap_find(const Charsmap *, CharsmapRule, const char *text, size_t n, const char **to,
                     size_t *to_n);
