/* Splits text into sentences by ICU's rules for a language: Unicode Standard Annex 29, and CLDR's list of
 * abbreviations that do not end a sentence. CLDR has such lists for English, French, German, Italian,
 * Portuguese, Russian and Spanish. Megatron-LM uses trained models (NLTK's Punkt), so its sentence boundaries
 * differ.
 *
 * An empty line ends a sentence, but a line break inside a paragraph does not. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/str.h"

typedef struct Sentences Sentences; /* for use by one thread at a time */

/* Opens a splitter. lang is the name of a Punkt model ("english") or an ICU locale ("en", "pt_BR"). With
 * keep_newlines, a sentence keeps the white space that follows it. Otherwise, both ends of a sentence are trimmed. */
Err sentences_open(const char *lang, bool keep_newlines, Sentences **out);
Sentences *sentences_clone(const Sentences *);
void sentences_close(Sentences *); /* NULL is fine */

/* Starts splitting n bytes of UTF-8. Invalid bytes are treated as ordinary characters. The text is borrowed until
 * sentences_next returns false. */
Err sentences_begin(Sentences *, const char *text, size_t n);
/* Finds the next sentence, bytes [*begin, *end) of the text. Returns false at the end of the text. No
 * sentence is empty. */
bool sentences_next(Sentences *, size_t *begin, size_t *end);
