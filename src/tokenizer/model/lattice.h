/* All splits of a word into the pieces of a unigram model: the best of them, and how often each piece is
 * expected. Sums have the order of the original, so that results differ from its results only by rounding
 * over words. Source: Kudo 2018 (arXiv:1804.10959) section 3.2; tokenizers/src/models/unigram/lattice.rs. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tokenizer/model/trie.h"

/* Piece 0 stands for a character that is not a piece. */
typedef struct PieceScores {
    const Trie *trie;     /* text to piece */
    const double *scores; /* by piece */
} PieceScores;

typedef struct Lattice Lattice; /* reusable; one per thread */
Lattice *lattice_new(void);
void lattice_free(Lattice *);
/* word: valid UTF-8, not empty. Replaces the word of before. */
void lattice_set(Lattice *, PieceScores, const char *word, size_t n);

/* expected[piece] += count * the probability of each place of the piece. */
void lattice_expect(Lattice *, double count, double *expected);
/* The best split (Viterbi), of several pieces if requested; n = 0: there is none. Valid until the next call. */
typedef struct Split {
    const int32_t *pieces;
    size_t n;
} Split;
Split lattice_best(Lattice *, bool several);
