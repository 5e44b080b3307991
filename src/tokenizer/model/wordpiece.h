/* WordPiece splits a pre-token, from left to right, into the longest tokens in the vocabulary. In a WordLevel model,
 * each pre-token is one token. Source: Devlin et al. 2018 (arXiv:1810.04805), tokenization.py of BERT;
 * tokenizers/src/models/wordpiece and wordlevel. */
#pragma once

#include <jansson.h>
#include <stddef.h>

#include "base/err.h"
#include "tokenizer/model/bpe.h"
#include "tokenizer/model/vocab.h"

typedef struct WordPiece WordPiece;

/* Loads the "model" object of a tokenizer.json. Returns an error if unk_token is not in the vocabulary. */
Err wordpiece_load(const json_t *model, WordPiece **out);
/* Loads a WordLevel model. Returns the same errors as wordpiece_load. */
Err wordlevel_load(const json_t *model, WordPiece **out);
void wordpiece_free(WordPiece *); /* NULL is fine */
const Vocab *wordpiece_vocab(const WordPiece *);

/* Appends the ids of the pre-token (valid UTF-8). A pre-token that cannot be encoded becomes unk_token. */
void wordpiece_encode(const WordPiece *, const char *piece, size_t n, Ids *out);
