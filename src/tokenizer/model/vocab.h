/* Maps the texts of tokens to ids, and ids to texts. */
#pragma once

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* all ids are below this limit; the largest published vocabularies have 2^18 tokens */
enum { VOCAB_ID_LIMIT = 1 << 24 };

typedef struct Vocab Vocab;

Vocab *vocab_new(void);
void vocab_free(Vocab *);
/* Adds a token. Returns an error if the id is outside [0, VOCAB_ID_LIMIT), or if the vocabulary already
 * contains the text or the id. */
Err vocab_add(Vocab *, const char *text, size_t n, int64_t id);
/* Adds the "vocab" of a tokenizer.json's model, {token: id}. Returns an error if an id is not an integer, or if
 * vocab_add returns an error. */
Err vocab_load(Vocab *, const json_t *model);
/* Returns the id of the token with the given text, or -1 if there is no such token. */
int32_t vocab_id(const Vocab *, const char *text, size_t n);
/* Returns the text of a token (borrowed, not NUL-terminated), or NULL if no token has the id. */
const char *vocab_text(const Vocab *, int32_t id, size_t *n);
size_t vocab_count(const Vocab *);
int32_t vocab_limit(const Vocab *); /* largest id + 1 */
