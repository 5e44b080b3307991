/* Trains byte-level BPE. Merges, ties among them and ids are those of the `tokenizers` library on the same
 * pre-tokens. Source: tokenizers/src/models/bpe/trainer.rs and word.rs. */
#pragma once

#include "tokenizer/train/training.h"

/* Words whose bytes are spelled as characters. pattern: gpt2, v1, v2, cl100k or o200k, how a text is
 * split. Errors: another pattern. */
Err bpe_words(const char *pattern, Words **out);
/* Merges until the vocabulary of special tokens, 256 bytes and merges is full or no pair is frequent
 * enough. *out: a tokenizer.json, for the caller to release; *tokens: the size of its vocabulary. Errors:
 * a vocabulary that special tokens and bytes fill. */
Err bpe_train(const Words *, const Training *, json_t **out, int64_t *tokens);
