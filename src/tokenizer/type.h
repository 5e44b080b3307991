/* The interface of a tokenizer type. tokenizer.c contains the code that all types share. */
#pragma once

#include "base/str.h"
#include "tokenizer/model/bpe.h"
#include "tokenizer/tokenizer.h"

typedef struct TokenizerType {
    const char *name;
    /* Sets impl, vocab_size and the special ids. Afterwards, the caller replaces the special ids with those
     * that the user specified. */
    Err (*open)(const TokenizerConfig *, Tokenizer *);
    Err (*encode)(const Tokenizer *, unsigned flags, const char *text, size_t n,
                  Ids *out); /* spans are in characters */
    /* The caller has checked that the ids are in range. If `starts` [n] is not NULL, it receives the byte
     * offset in `out` at which each token begins. If a type cannot compute the starts, it returns an error. */
    Err (*decode)(const Tokenizer *, unsigned flags, const int32_t *ids, size_t n, Str *out, size_t *starts);
    int32_t (*token_id)(const Tokenizer *, const char *token);
    const char *(*token_text)(const Tokenizer *, int32_t id, size_t *n); /* NULL if the id has no text */
    bool (*is_special)(const Tokenizer *, int32_t id);
    void (*free)(void *impl);
} TokenizerType;

struct Tokenizer {
    const TokenizerType *type;
    void *impl;
    int32_t vocab_size, eod, pad, bos, cls, sep, mask;
    unsigned flags; /* flags that apply to every encoded text */
    json_t *named;  /* tokenizer_named */
};

extern const TokenizerType TOKENIZER_HUGGINGFACE, TOKENIZER_GPT2, TOKENIZER_BERT_LOWER,
    TOKENIZER_BERT_CASE;                                                       /* hf_open.c */
extern const TokenizerType TOKENIZER_SPM, TOKENIZER_GPT_SPM, TOKENIZER_LLAMA2; /* spm.c */
extern const TokenizerType TOKENIZER_TIKTOKEN;                                 /* tiktoken.c */
