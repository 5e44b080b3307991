/* Encodes a pre-token by byte-pair encoding. The algorithm starts with the characters, and merges the adjacent
 * pair with the lowest rank, leftmost first, until no pair has a rank. Candidate pairs are in a heap, so
 * encoding a word of n characters takes O(n log n) time. Source: Sennrich et al. 2016 (arXiv:1508.07909);
 * tokenizers/src/models/bpe. */
#pragma once

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "tokenizer/model/heap.h"
#include "tokenizer/model/vocab.h"
#include "tokenizer/text/aligned.h"

/* A list of token ids. If `spans` is set before the first id is added, the list also records the range of the
 * pre-token's bytes that each token spans. */
typedef struct Ids {
    int32_t *v;
    size_t n, cap;
    bool spans;
    Origin *at; /* [n] */
} Ids;
void ids_add(Ids *, int32_t id, size_t begin, size_t end);
void ids_free(Ids *);

typedef struct Bpe Bpe;

/* Loads the "model" object of a tokenizer.json, with unk_token, fuse_unk, byte_fallback and ignore_merges. Returns an
 * error for dropout, subword affixes, and a merge of tokens that are not in the vocabulary. */
Err bpe_load(const json_t *model, Bpe **out);
void bpe_free(Bpe *);
const Vocab *bpe_vocab(const Bpe *);

/* The working memory of bpe_encode. Each thread needs a separate, zero-initialized BpeWork. */
typedef struct BpeWork {
    struct Symbol *symbols;
    size_t symbol_cap;
    Heap heap;
} BpeWork;
void bpe_work_free(BpeWork *);

/* Appends the ids of the pre-token (valid UTF-8, below 2^31 bytes) to `out`. */
void bpe_encode(const Bpe *, BpeWork *, const char *piece, size_t n, Ids *out);
