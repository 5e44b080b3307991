/* Trains byte-level BPE. Merges, ties among them and ids are those of the `tokenizers` library on the same
 * pre-tokens. Source: tokenizers/src/models/bpe/trainer.rs and word.rs. */
#ifndef ISOTRON_TOKENIZER_TRAIN_BPE_H
#define ISOTRON_TOKENIZER_TRAIN_BPE_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

typedef struct BpeTrainer BpeTrainer;

/* pattern: gpt2, v1, v2, cl100k or o200k, how a text is split. Errors: another pattern. */
Err bpe_trainer_new(const char *pattern, BpeTrainer **out);
void bpe_trainer_free(BpeTrainer *); /* NULL is fine */
/* Counts the words of a text. Errors: from the regex, more than 2^24 different words. */
Err bpe_trainer_add(BpeTrainer *, const char *text, size_t n);
int64_t bpe_trainer_words(const BpeTrainer *); /* different ones so far */

typedef struct BpeTraining {
    int64_t vocab_size;    /* special tokens, 256 bytes and merges */
    int64_t min_frequency; /* of a pair that is merged */
    const char *const *special;
    size_t num_special;
    /* Called after every 1000 merges; NULL: never. */
    void (*progress)(void *ctx, int64_t tokens);
    void *ctx;
} BpeTraining;

/* Merges until the vocabulary is full or no pair is frequent enough; consumes the words. *out: a tokenizer.json, for the
 * caller to release; *tokens: the size of its vocabulary. Errors: a vocabulary that special tokens and bytes fill. */
Err bpe_trainer_run(BpeTrainer *, const BpeTraining *, json_t **out, int64_t *tokens);

#endif
