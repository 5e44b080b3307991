/* Byte-pair encoding as in tiktoken and SentencePiece: the models contain no list of merges. Two adjacent parts merge
 * if their concatenated text is a token. The pair with the lowest rank merges first and, among pairs with equal ranks,
 * the leftmost pair. Source: tiktoken/src/lib.rs, byte_pair_merge; sentencepiece/src/bpe_model.cc. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tokenizer/model/heap.h"
#include "tokenizer/model/trie.h"
#include "tokenizer/model/vocab.h"

typedef struct RankBpe RankBpe;

enum { RANK_NEVER = 0x7FFFFFFF }; /* the rank of a token that no merge may create */

/* Creates an encoder. Takes ownership of the vocabulary, the ranks of its ids ([vocab_limit]), and `frozen`. If
 * `whole` is true, a piece that is a token is encoded as this token without merging. `frozen`, which may be
 * NULL, contains the texts of tokens that never merge. */
RankBpe *rankbpe_new(Vocab *, uint32_t *ranks, bool whole, Trie *frozen);
void rankbpe_free(RankBpe *); /* NULL is fine */
const Vocab *rankbpe_vocab(const RankBpe *);

typedef struct RankWork { /* each thread needs a separate, zero-initialized RankWork */
    struct Part *parts;
    size_t cap;
    Heap heap;
} RankWork;
void rank_work_free(RankWork *);

/* Calls fn for each token of the piece (valid UTF-8, below 2^31 bytes), with the token's text and id. The id
 * is -1 if the text is not a token. */
typedef void TokenFn(void *arg, const char *text, size_t n, int32_t id);
void rankbpe_encode(const RankBpe *, RankWork *, const char *piece, size_t n, TokenFn *fn, void *arg);
