/* The "normalizer" of a tokenizer.json: BertNormalizer, ByteLevel, Lowercase, NFC, NFD, NFKC, NFKD, Nmt, Precompiled,
 * Prepend, Replace, Sequence, Strip and StripAccents. Normalization forms follow Unicode 9, as in the `tokenizers`
 * library (ages.h). Source: Unicode Standard Annex 15 (normalization forms) with utf8proc's tables;
 * tokenizers/src/normalizers. */
#pragma once

#include <jansson.h>

#include "base/err.h"
#include "tokenizer/text/aligned.h"
#include "tokenizer/text/regex.h"

typedef struct Normalizer Normalizer;

/* Loads a normalizer. If the object is NULL or the JSON value null, the normalizer changes nothing. Returns an
 * error if the type is not one of those listed above. */
Err normalizer_load(const json_t *, Normalizer **out);
void normalizer_free(Normalizer *);

/* Sets `out` to the normalized text. `text` is valid UTF-8, and begins at byte `at` of the original text.
 * Returns an error if a regex exceeds its limits, or if the text becomes too long. */
Err normalizer_run(const Normalizer *, Matcher *, const char *text, size_t n, size_t at, Aligned *out);

/* Appends `text` with every match of the regex replaced by `content`. Returns the same errors as normalizer_run. */
Err replace_all(const Regex *, const Str *content, Matcher *, View text, Aligned *out);
