/* The unigram language model splits a pre-token into the tokens whose scores have the largest sum (Viterbi
 * algorithm). Scores are summed in double precision for a tokenizer.json, but in single precision for a
 * SentencePiece model. Source: Kudo 2018 (arXiv:1804.10959); the optimized encoders in
 * tokenizers/src/models/unigram/model.rs and sentencepiece/src/unigram_model.cc. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "tokenizer/model/bpe.h"
#include "tokenizer/model/vocab.h"

typedef struct Unigram Unigram;

/* Loads the "model" object of a tokenizer.json. Returns an error if there is no unk_id, or if a token has no score. */
Err unigram_load(const json_t *model, Unigram **out);
/* Creates a SentencePiece model, which sums scores in single precision. `vocab` is borrowed. `unk` is the id of
 * unknown characters, and `unk_score` is their score. */
Unigram *unigram_new(const Vocab *vocab, int32_t unk, double unk_score);
/* Allows the token `id` in segmentations, and sets its score. */
void unigram_use(Unigram *, int32_t id, double score);
/* Makes the encoder replace unknown text with the byte tokens <0x00> ... <0xFF>. If a byte's token is missing,
 * the text remains unknown. */
void unigram_use_bytes(Unigram *);
void unigram_free(Unigram *); /* NULL is fine */
const Vocab *unigram_vocab(const Unigram *);

/* The working memory of unigram_encode. Each thread needs a separate, zero-initialized UnigramWork. */
typedef struct UnigramWork {
    struct Best *best;
    size_t cap;
} UnigramWork;
void unigram_work_free(UnigramWork *);

/* Appends the ids of the pre-token (valid UTF-8, below 2^31 bytes) to `out`. */
void unigram_encode(const Unigram *, UnigramWork *, const char *piece, size_t n, Ids *out);
