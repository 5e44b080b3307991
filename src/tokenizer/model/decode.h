/* The "decoder" of a tokenizer.json: ByteLevel, ByteFallback, Fuse, Strip, Replace, Metaspace, WordPiece and Sequence.
 * A decoder turns a list of token strings into one text. Source: tokenizers/src/decoders. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/str.h"
#include "tokenizer/text/regex.h"

typedef struct Decoder Decoder;

/* The texts of tokens, concatenated in one buffer. */
typedef struct Texts {
    Str bytes;
    size_t *end; /* [n], the end of each text in `bytes` */
    size_t n, cap;
} Texts;
void texts_add(Texts *, const char *text, size_t n);
void texts_free(Texts *);

/* Loads a decoder. If the object is NULL or the JSON value null, the decoder joins tokens by blanks, as in the
 * `tokenizers` library. Returns an error if the type is not one of those listed above. */
Err decoder_load(const json_t *, Decoder **out);
void decoder_free(Decoder *);

/* Returns whether decoding only concatenates the token strings. */
bool decoder_joins_bytes(const Decoder *);

/* Appends the decoded text to `out`, and overwrites `tokens`. ByteLevel returns bytes unchanged, whereas the
 * library replaces invalid UTF-8. Returns an error only if a Replace fails. */
Err decoder_run(const Decoder *, Matcher *, Texts *tokens, Str *out);
