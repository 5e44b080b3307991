/* The interface of a kind of tokenizer; tokenizer.c has the common part. */
#ifndef ISOTRON_TOKENIZER_TYPE_H
#define ISOTRON_TOKENIZER_TYPE_H

#include "base/str.h"
#include "tokenizer/bpe.h"
#include "tokenizer/tokenizer.h"

typedef struct TokenizerType {
    const char *name;
    /* Sets impl, vocab_size, eod, pad and bos. The caller then applies the ids that the user gave. */
    Err (*open)(const TokenizerConfig *, Tokenizer *);
    Err (*encode)(const Tokenizer *, unsigned flags, const char *text, size_t n, Ids *out);
    Err (*decode)(const Tokenizer *, unsigned flags, const int32_t *ids, size_t n,
                  Str *out); /* ids are in range */
    int32_t (*token_id)(const Tokenizer *, const char *token);
    bool (*is_special)(const Tokenizer *, int32_t id);
    void (*free)(void *impl);
} TokenizerType;

struct Tokenizer {
    const TokenizerType *type;
    void *impl;
    int32_t vocab_size, eod, pad, bos;
};

/* hf.c: tokenizer.json, and GPT-2's pair of files as one */
extern const TokenizerType TOKENIZER_HUGGINGFACE, TOKENIZER_GPT2;

#endif
