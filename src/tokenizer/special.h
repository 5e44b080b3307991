/* Tokens that models of masked text need, as Megatron-LM's HuggingFaceTokenizer finds them. */
#pragma once

#include "tokenizer/tokenizer.h"

typedef enum SpecialToken {
    SPECIAL_CLS,  /* [CLS], <cls>, or the beginning of a sequence */
    SPECIAL_SEP,  /* [SEP], <sep>, or the end of a document */
    SPECIAL_MASK, /* [MASK], <mask> */
    SPECIAL_BOS,  /* the beginning of a sequence, [CLS], or padding, with which T5's decoder begins */
    SPECIAL_EOS   /* the end of a document, or [SEP] */
} SpecialToken;

/* -1: none */
int64_t tokenizer_special(const Tokenizer *, SpecialToken);
/* The ids of <extra_id_0>, <extra_id_1>, ..., with which T5 marks masked spans, in memory that the caller frees. */
int64_t tokenizer_sentinels(const Tokenizer *, int64_t **ids);
/* [vocab_size], 1 where a token begins with "##" and so continues a word; the caller frees it. */
Err tokenizer_continuations(const Tokenizer *, unsigned char **out);
