/* A source of tokens: an IndexedDataset, or mock data as in Megatron-LM's MockGPTLowLevelDataset
 * (core/datasets/gpt_dataset.py). Mock data has 100000 sequences of lengths default_rng(0).integers(1, longest). A
 * sequence of length l consists of 1, 2, .., l-1 (modulo the vocabulary size) and the end-of-document token. */
#pragma once

#include <stdint.h>

#include "base/err.h"
#include "data/indexed.h"

typedef struct MockShape {
    int32_t longest;   /* exclusive upper bound of the lengths */
    int32_t sentences; /* number of sequences per document */
} MockShape;

typedef struct TokenSource {
    char *prefix;           /* the prefix as the user wrote it (owned); NULL for mock data */
    IndexedDataset indexed; /* empty for mock data */
    int32_t *mock_lengths;  /* owned; NULL unless the data is mock data */
    MockShape mock;
    int64_t sequences, documents, vocab_size, eod;
} TokenSource;

/* Opens a source. If prefix is NULL, the source is mock data, which requires vocab_size >= 1 and eod. A source is
 * read-only and shared by all splits and threads. */
Err source_open(const char *prefix, MockShape, int64_t vocab_size, int64_t eod, TokenSource *out);
void source_close(TokenSource *);
const char *source_name(const TokenSource *); /* returns the prefix, or a name for mock data */
int32_t source_length(const TokenSource *, int64_t sequence);
/* Returns the first sequence of `document`. For document == documents, returns the number of sequences. */
int64_t source_document(const TokenSource *, int64_t document);
void source_tokens(const TokenSource *, int64_t sequence, int64_t begin, int64_t count, int64_t *out);
