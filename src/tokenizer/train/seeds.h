/* The first pieces of a unigram model: every character of the words, then the substrings that occur in
 * different contexts, those with the largest count times length first. Source: Kudo 2018
 * (arXiv:1804.10959) section 3.2; tokenizers/src/models/unigram/trainer.rs, make_seed_sentence_pieces. */
#pragma once

#include "tokenizer/train/training.h"

enum { LONGEST_PIECE = 16 }; /* characters */

typedef struct Seeds {
    Vocab *texts;
    double *counts; /* by id; of a substring times its length */
    int32_t chars;  /* the ids below are single characters */
} Seeds;

/* At most `limit` pieces, or one more than there are characters. Fills `out`, which must be zero; release
 * it in any case. */
Err seeds_find(const Words *, int64_t limit, Seeds *out);
void seeds_free(Seeds *);
