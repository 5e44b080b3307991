/* Shared by the trainers of tokenizers: the words of a text and how often each occurs, and the options. */
#pragma once

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "tokenizer/model/vocab.h"

/* The different words (pre-tokens) of all texts, numbered by first occurrence. */
typedef struct Words Words;

/* The parts of a tokenizer.json that make words; both are taken over. normalizer NULL: none. */
Err words_new(json_t *normalizer, json_t *pre_tokenizer, Words **out);
void words_free(Words *); /* NULL is fine */
/* Counts the words of a text. Errors: from a regex, more than 2^24 different words. */
Err words_add(Words *, const char *text, size_t n);
int32_t words_number(const Words *);
const char *words_text(const Words *, int32_t word, size_t *n); /* borrowed, not NUL-terminated */
int64_t words_count(const Words *, int32_t word);

typedef struct Training {
    int64_t vocab_size;
    int64_t min_frequency; /* BPE: of a pair that is merged */
    const char *const *special;
    size_t num_special;
    /* BPE: called with the number of tokens after every 1000 merges; Unigram: with the number of pieces
     * before each round. NULL: never. */
    void (*progress)(void *ctx, int64_t tokens);
    void *ctx;
} Training;

/* A tokenizer.json with the normalizer and pre-tokenizer of the words. The special tokens are those of `training`, and
 * `vocab` has their ids. Takes ownership of decoder and model. */
json_t *training_json(const Words *, const Training *, const Vocab *, json_t *decoder, json_t *model);
/* A token as a JSON string. */
json_t *training_token(const Vocab *, int32_t id);
