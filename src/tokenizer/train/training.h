/* The words in the training text with their counts, and the training options. All tokenizer trainers use this
 * code. */
#pragma once

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "tokenizer/model/vocab.h"

/* The distinct words (pre-tokens) in all texts, numbered by first occurrence. */
typedef struct Words Words;

/* Creates Words from the parts of a tokenizer.json that split texts. Takes ownership of both parts. If
 * `normalizer` is NULL, texts are not normalized. */
Err words_new(json_t *normalizer, json_t *pre_tokenizer, Words **out);
void words_free(Words *); /* NULL is fine */
/* Counts the words of a text. Returns an error if a regex fails, or if there are more than 2^24 different words. */
Err words_add(Words *, const char *text, size_t n);
int32_t words_number(const Words *);
const char *words_text(const Words *, int32_t word, size_t *n); /* borrowed, not NUL-terminated */
int64_t words_count(const Words *, int32_t word);

typedef struct Training {
    int64_t vocab_size;
    int64_t min_frequency; /* BPE: minimum count of a pair to merge */
    const char *const *special;
    size_t num_special;
    /* BPE: called after every 1000 merges with the number of tokens. Unigram: called before each round with
     * the number of pieces. NULL means that progress is not reported. */
    void (*progress)(void *ctx, int64_t tokens);
    void *ctx;
} Training;

/* Returns a tokenizer.json with the normalizer and pre-tokenizer of the words, and with the Training's special tokens;
 * their ids are in `vocab`. Takes ownership of decoder and model. */
json_t *training_json(const Words *, const Training *, const Vocab *, json_t *decoder, json_t *model);
/* Returns a token as a JSON string. */
json_t *training_token(const Vocab *, int32_t id);
