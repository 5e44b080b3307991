/* The bytes of a vocabulary's tokens, sorted so that a search finds tokens with a common prefix next to each other. A
 * Vocabulary never changes, so any number of threads may use it. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct TokenText {
    const char *bytes; /* [n] */
    int32_t n;         /* 0: the token has no text */
} TokenText;

typedef struct VocabularyRow {
    TokenText text;
    int32_t id;
    int32_t common; /* number of leading bytes that this row shares with the previous row */
} VocabularyRow;

/* The tokens that have text, sorted by their bytes. */
typedef struct Vocabulary {
    VocabularyRow *row; /* [n] */
    int64_t n;
    TokenText *text; /* [size]: the text of each id */
    int64_t size;
    char *bytes;
} Vocabulary;

/* Copies the text of tokens 0, 1, ..., size - 1. */
Vocabulary *vocabulary_new(const TokenText *, int64_t size);
void vocabulary_free(Vocabulary *); /* NULL is fine */
