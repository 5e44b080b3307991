/* The "pre_tokenizer" of a tokenizer.json: BertPreTokenizer, Split, ByteLevel, Digits, Metaspace, Punctuation,
 * Whitespace, WhitespaceSplit, CharDelimiterSplit and Sequence. Each type consists of one or more steps: prepending a
 * blank, splitting the text, representing bytes by characters, and replacing blanks with metaspaces. Each piece passes
 * through all steps before the next piece is split off, so no list of all pieces is stored. Source:
 * tokenizers/src/pre_tokenizers and NormalizedString::split; GPT-2 encoder.py (byte spelling). */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "tokenizer/text/aligned.h"
#include "tokenizer/text/regex.h"

typedef struct PreTokenizer PreTokenizer;
typedef struct PreTokenizerWork PreTokenizerWork; /* each thread needs a separate PreTokenizerWork */

/* Loads a pre-tokenizer. If the object is NULL or the JSON value null, a text is one piece. Returns an error if
 * a type is not one of those listed above, or if there is more than one ByteLevel. */
Err pretokenizer_load(const json_t *, PreTokenizer **out);
void pretokenizer_free(PreTokenizer *);
PreTokenizerWork *pretokenizer_work_new(const PreTokenizer *);
void pretokenizer_work_free(PreTokenizerWork *);

/* Returns true if the pieces depend on the text's origins, as they do if a Metaspace adds its prefix only at the start
 * of the original text. */
bool pretokenizer_needs_origins(const PreTokenizer *);
/* Calls fn for each non-empty piece in order. Returns an error only if a regex search fails. */
typedef void PieceFn(void *arg, View piece);
Err pretokenizer_run(const PreTokenizer *, PreTokenizerWork *, Matcher *, View text, PieceFn *fn, void *arg);

/* byte_to_char returns the character that represents a byte in byte-level vocabularies. char_to_byte is the
 * inverse function, and returns -1 if the character represents no byte. */
uint32_t byte_to_char(unsigned char byte);
int char_to_byte(uint32_t character);
/* Appends the characters that represent the bytes of a text. */
void spell_bytes(View, Aligned *out);
