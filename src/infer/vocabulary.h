/* The bytes of the tokens of a vocabulary, in the order in which a search with common beginnings reads them. It never
 * changes, so any number of threads may use it. */
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
    int32_t common; /* number of first bytes that are those of the row before */
} VocabularyRow;

/* The tokens with a text, in the order of their bytes. */
typedef struct Vocabulary {
    VocabularyRow *row; /* [n] */
    int64_t n;
    TokenText *text; /* [size] of each id */
    int64_t size;
    char *bytes;
} Vocabulary;

/* Copies the texts of the tokens 0, 1, ..., size - 1. */
Vocabulary *vocabulary_new(const TokenText *, int64_t size);
void vocabulary_free(Vocabulary *); /* NULL is fine */
