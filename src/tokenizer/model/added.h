/* The "added_tokens" of a tokenizer.json are split off from a text before the model runs. The leftmost match
 * takes precedence and, among matches at the same position, the longest. Tokens with normalized = false are
 * searched for in the original text. The text between such tokens is normalized, and then searched for the
 * normalized spellings of tokens with normalized = true. Source:
 * tokenizers/src/tokenizer/added_vocabulary.rs. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "tokenizer/model/vocab.h"
#include "tokenizer/text/normalize.h"

typedef struct Added Added;

/* Loads the list. A token without an "id" gets the next id. The special tokens in `extra` are appended if the
 * list lacks them. If free_ids is set, tokens without "from" may have ids that the `tokenizers` library would
 * not assign. Returns an error if a token occurs twice, or if its id contradicts the model's vocabulary or
 * differs from the id that the library would assign. */
typedef struct AddedOptions {
    const char *const *extra;
    size_t num_extra;
    bool free_ids;
} AddedOptions;
Err added_load(const json_t *list, const Normalizer *, const Vocab *model, AddedOptions, Added **out);
void added_free(Added *);

/* Returns the vocabulary that contains the added tokens. */
const Vocab *added_vocab(const Added *);
bool added_is_special(const Added *, int32_t id);
/* Returns the decoded text of an added token (borrowed), or NULL if the id is not an added token. */
const char *added_text(const Added *, int32_t id, size_t *n);

/* Calls fn, in order, for each added token (with its id) and each non-empty stretch of text between added
 * tokens (with id -1). If special_as_text is set, special tokens are treated as ordinary text. */
typedef void AddedFn(void *arg, int32_t id, size_t begin, size_t end);
void added_split(const Added *, bool normalized, bool special_as_text, const char *text, size_t n,
                 AddedFn *fn, void *arg);
