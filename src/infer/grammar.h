/* Describes the text that a request may generate, and computes which tokens may come next. The description is an
 * automaton over bytes with rules that can call each other. Token masks depend only on the automaton, the text and the
 * vocabulary's bytes, so all ranks compute the same masks. */
#pragma once

#include <stdbool.h>

#include "infer/vocabulary.h"

typedef enum GrammarKind {
    GRAMMAR_BYTE,   /* matches a byte from `low` to `high`, then continues at `next` */
    GRAMMAR_TOKEN,  /* matches the token `other` regardless of its bytes, then continues at `next` */
    GRAMMAR_EITHER, /* continues at both `next` and `other` */
    GRAMMAR_CALL,   /* calls the rule at `next`; continues at `other` when that rule reaches GRAMMAR_RETURN */
    GRAMMAR_RETURN, /* returns to the last call or, without a call, ends the text */
} GrammarKind;

/* A node of an automaton. `next` and `other` are node indices. A cycle of nodes must contain a GRAMMAR_BYTE or a
 * GRAMMAR_TOKEN. */
typedef struct GrammarNode {
    uint8_t kind, low, high, unused;
    int32_t next, other;
} GrammarNode;

enum {
    GRAMMAR_DEEPEST = 256, /* maximum number of nested calls; text that needs more is not allowed */
    GRAMMAR_WIDEST = 1024, /* maximum number of nodes that a text may have reached */
};

/* The nodes that the text so far may have reached. */
typedef struct GrammarReader GrammarReader;

/* Creates a reader, which starts at node 0. Copies the n nodes; the vocabulary must outlive the reader. */
GrammarReader *grammar_new(const GrammarNode *, int64_t n, const Vocabulary *);
void grammar_free(GrammarReader *); /* NULL is fine */
/* Computes which tokens may follow the n tokens. Later calls must pass the same first `settled` tokens. The result
 * [size], which is valid until the next call, states for each token in the vocabulary whether it may follow. Sets
 * *complete to true if the text may end here, and to false otherwise. Returns NULL if the text, or the text with one
 * more token, may have reached more than GRAMMAR_WIDEST nodes. */
const bool *grammar_next(GrammarReader *, const int32_t *tokens, int64_t n, int64_t settled, bool *complete);
