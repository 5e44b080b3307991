/* Trains byte-level BPE. Given the same pre-tokens, the `tokenizers` library produces the same merges, ids and
 * order of pairs with equal counts. Source: tokenizers/src/models/bpe/trainer.rs and word.rs. */
#pragma once

#include "tokenizer/train/training.h"

/* Creates Words in which characters represent bytes. The pattern that splits text is gpt2, v1, v2, cl100k or o200k. Any
 * other pattern is an error. */
Err bpe_words(const char *pattern, Words **out);
/* Trains until the vocabulary, which consists of special tokens, 256 bytes and merged tokens, is full, or until
 * no pair is frequent enough. Sets *out to a tokenizer.json, which the caller releases, and sets *tokens to the
 * size of its vocabulary. Returns an error if the requested vocabulary is too small for special tokens and
 * bytes. */
Err bpe_train(const Words *, const Training *, json_t **out, int64_t *tokens);
