/* The "model" of a tokenizer.json, which converts pre-tokens to ids: BPE, WordPiece, WordLevel or Unigram. */
#pragma once

#include <jansson.h>

#include "tokenizer/model/bpe.h"
#include "tokenizer/model/rankbpe.h"
#include "tokenizer/model/unigram.h"
#include "tokenizer/model/wordpiece.h"

/* Exactly one member is not NULL. */
typedef struct TokenModel {
    Bpe *bpe;
    WordPiece *words;
    Unigram *unigram;
    RankBpe *ranked; /* created by tiktoken.c, and never read from a tokenizer.json */
} TokenModel;

/* Fills `out`, which must be zero-initialized. A model without a type is a BPE model. Returns an error if the
 * type is unknown, or if the type's loader returns an error. */
Err token_model_load(const json_t *, TokenModel *out);
void token_model_free(TokenModel *);
const Vocab *token_model_vocab(const TokenModel *);

typedef struct TokenModelWork { /* each thread needs a separate, zero-initialized TokenModelWork */
    BpeWork bpe;
    UnigramWork unigram;
    RankWork ranked;
} TokenModelWork;
void token_model_work_free(TokenModelWork *);

/* Appends the ids of the pre-token (valid UTF-8, below 2^31 bytes) to `out`. */
void token_model_encode(const TokenModel *, TokenModelWork *, const char *piece, size_t n, Ids *out);
