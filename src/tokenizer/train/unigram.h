/* Trains a unigram language model. Training begins with many pieces. Rounds of expectation maximization then
 * alternate with removals of the pieces that contribute least to the likelihood, until the vocabulary is small
 * enough. The algorithm and its constants are those of the `tokenizers` library. The library sums over words in
 * random order, so Isotron's scores differ from the library's by the rounding errors of these sums. There are two more
 * differences from the library: in Isotron, the character 0 is never a piece, and a special token that also occurs in
 * the text has only one entry. Source: Kudo 2018 (arXiv:1804.10959); tokenizers/src/models/unigram/trainer.rs. */
#pragma once

#include "tokenizer/train/training.h"

/* Creates Words as tokenizers' SentencePieceUnigramTokenizer does: applies Nmt and NFKC, reduces runs of blanks to one
 * blank, and puts a metaspace before each word. */
Err unigram_words(Words **out);
/* Trains a model. The vocabulary consists of "<unk>" (unless this is a special token), the special tokens, and
 * the pieces by score, in this order. Sets *out to a tokenizer.json, which the caller releases, and sets
 * *tokens to the size of its vocabulary. The vocabulary is smaller than requested if the text has too few
 * substrings. Returns an error if the requested vocabulary is too small for special tokens and characters, or
 * if a word is longer than 4 MiB. */
Err unigram_train(const Words *, const Training *, json_t **out, int64_t *tokens);
