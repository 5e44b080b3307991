/* Trains a unigram language model: from many pieces, expectation maximisation and pruning by the loss of likelihood,
 * until the vocabulary is small enough. Algorithm and constants are those of the `tokenizers` library on the same
 * pre-tokens. It sums over words in an order that changes by chance, so scores agree up to the rounding of those sums.
 * Two differences: the character 0 is not a piece here, and a special token that also occurs in the text has no second
 * entry. Source: Kudo 2018 (arXiv:1804.10959); tokenizers/src/models/unigram/trainer.rs. */
#pragma once

#include "tokenizer/train/training.h"

/* Words as SentencePieceUnigramTokenizer of tokenizers makes them: NFKC, control characters dropped,
 * blanks joined, each word with a metaspace in front. */
Err unigram_words(Words **out);
/* Special tokens come first ("<unk>" before them if it is not among them), then pieces by score. *out: a
 * tokenizer.json, for the caller to release; *tokens: the size of its vocabulary, smaller than requested if the text
 * has too few substrings. Errors: a vocabulary that special tokens and characters fill, a word of more than 4 MiB. */
Err unigram_train(const Words *, const Training *, json_t **out, int64_t *tokens);
