/* A lattice represents all segmentations of a word into pieces of a unigram model. The functions find the best
 * segmentation, and the expected number of occurrences of each piece. Within a word, terms are added in the
 * same order as in the `tokenizers` library, so results differ from the library's only by the rounding errors
 * of sums over several words. Source: Kudo 2018 (arXiv:1804.10959) section 3.2;
 * tokenizers/src/models/unigram/lattice.rs. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tokenizer/model/trie.h"

/* Piece 0 represents characters that are not pieces. */
typedef struct PieceScores {
    const Trie *trie;     /* maps a piece's text to its number */
    const double *scores; /* [pieces] */
} PieceScores;

typedef struct Lattice Lattice; /* a Lattice can be reused; each thread needs a separate Lattice */
Lattice *lattice_new(void);
void lattice_free(Lattice *);
/* Sets the word, which must be valid UTF-8 and not empty. */
void lattice_set(Lattice *, PieceScores, const char *word, size_t n);

/* Adds count * probability to expected[piece] for each occurrence of a piece in the lattice. */
void lattice_expect(Lattice *, double count, double *expected);
/* Returns the best segmentation (Viterbi algorithm) or, if `several` is set, the best one with more than one
 * piece. n is 0 if no segmentation exists. The result is valid until the next call. */
typedef struct Split {
    const int32_t *pieces;
    size_t n;
} Split;
Split lattice_best(Lattice *, bool several);
