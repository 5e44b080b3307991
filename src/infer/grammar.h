/* Texts that a request may generate, as an automaton over bytes whose rules may call each other, and the tokens that
 * may follow a text. Masks of tokens are computed from the bytes of the vocabulary and depend on nothing else, so that
 * all ranks compute the same. */
#pragma once

#include <stdbool.h>

#include "infer/vocabulary.h"

typedef enum GrammarKind {
    GRAMMAR_BYTE,   /* a byte from `low` to `high` leads to `next` */
    GRAMMAR_TOKEN,  /* the token `other` leads to `next`, whatever its text is */
    GRAMMAR_EITHER, /* is `next` and `other` */
    GRAMMAR_CALL,   /* is `next`, whose GRAMMAR_RETURN leads to `other` */
    GRAMMAR_RETURN, /* leads back to the last call or, without a call, ends the text */
} GrammarKind;

/* A node of an automaton. `next` and `other` are indices of nodes. A cycle of nodes needs a byte or a token. */
typedef struct GrammarNode {
    uint8_t kind, low, high, unused;
    int32_t next, other;
} GrammarNode;

enum {
    GRAMMAR_DEEPEST = 256, /* maximum number of calls that have not returned; a text cannot contain more */
    GRAMMAR_WIDEST = 1024, /* maximum number of nodes in which a text may be; further ones are dropped */
};

/* The nodes in which a text may be. */
typedef struct GrammarReader GrammarReader;

/* Begins at node 0. The nodes [n] are copied; the vocabulary must outlive the reader. */
GrammarReader *grammar_new(const GrammarNode *, int64_t n, const Vocabulary *);
void grammar_free(GrammarReader *); /* NULL is fine */
/* Computes what may follow the tokens [n]. The first `settled` of them, and those of earlier calls, do not change
 * later. Returns for each token of the vocabulary whether it may follow, [size], valid until the next call. Sets
 * *complete: whether the text may end. */
const bool *grammar_next(GrammarReader *, const int32_t *tokens, int64_t n, int64_t settled, bool *complete);
