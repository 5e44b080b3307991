/* Chooses which of a sample's tokens to mask. The selected tokens equal those that Megatron-LM selects with
 * the same generator (core/datasets/masked_dataset.py, _create_masked_lm_predictions):
 *
 *   A word is a token and the continuations ("##") that follow it; [CLS] and [SEP] belong to no word. Words
 *   are visited in random order. For each word, the number n of words to mask, starting with this word, is
 *   drawn at random. The probability of n is proportional to 1/n, or n is geometrically distributed
 *   (SpanBERT, Joshi et al., 2020, section 3.1). n is reduced until the n words have no more tokens than remain to be
 *   masked. An n-gram that contains a masked token is skipped.
 *
 * The number of tokens to mask is min(p * target, max(1, round(p * tokens))). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "data/random/mt19937.h"

/* The ids of the special tokens that masked datasets need. A token that the vocabulary lacks has the id -1. */
typedef struct MaskTokens {
    int64_t cls, sep, mask;   /* BERT */
    int64_t bos, eos;         /* T5 */
    const int64_t *sentinels; /* the tokens that replace T5's spans, in order of use */
    int64_t num_sentinels;
    int64_t vocab_size;             /* random replacement tokens have ids below vocab_size */
    const unsigned char *continues; /* [vocab_size]: 1 if the token continues a word; NULL if no token does */
} MaskTokens;

typedef struct MaskingConfig {
    double probability; /* (0, 1) */
    int max_ngram;
    /* whether n follows a geometric distribution with p = 0.2; otherwise, P(n) is proportional to 1/n */
    bool geometric;
    /* Whether to change the text: 80 % of the masked tokens become [MASK], 10 % become a random token, and 10 % are
     * unchanged. */
    bool random_words;
} MaskingConfig;

typedef struct MaskSpan {
    int64_t begin, count; /* range of Masking.tokens */
} MaskSpan;

/* The result of masking_choose. Each array must have room for every token. */
typedef struct Masking {
    int64_t *tokens; /* the positions of tokens that belong to words, in ascending order */
    int64_t *words;  /* [num_words + 1], index in `tokens` of each word's first token */
    int64_t num_words;
    MaskSpan *spans; /* ascending */
    int64_t num_spans, masked;
    bool *is_masked; /* [positions], whether the token at each position is masked */
} Masking;

Masking masking_new(int64_t capacity);
void masking_free(Masking *);
/* Chooses the spans to mask in a text of n <= capacity tokens; `target` is the sample's target length. Changes `text`
 * if random_words is true. All ids must be in the vocabulary. */
void masking_choose(Masking *, const MaskingConfig *, const MaskTokens *, int64_t *text, int64_t n,
                    int64_t target, Mt19937 *);
