/* The initial pieces of a unigram model: every character of the words, then the substrings that are followed by at
 * least two different characters, in descending order of count times length. Source: Kudo 2018 (arXiv:1804.10959)
 * section 3.2; tokenizers/src/models/unigram/trainer.rs, make_seed_sentence_pieces. */
#pragma once

#include "tokenizer/train/training.h"

enum { LONGEST_PIECE = 16 }; /* maximum number of characters */

typedef struct Seeds {
    Vocab *texts;
    double *counts; /* [id]: number of occurrences; for a substring, occurrences times length */
    int32_t chars;  /* number of single characters, which have the first ids */
} Seeds;

/* Finds at most max(limit, number of characters + 1) pieces. Fills `out`, which must be zero-initialized. The
 * caller must call seeds_free even after an error. */
Err seeds_find(const Words *, int64_t limit, Seeds *out);
void seeds_free(Seeds *);
