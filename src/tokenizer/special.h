/* The special tokens of masked language models, selected as in Megatron-LM's HuggingFaceTokenizer. */
#pragma once

#include "tokenizer/tokenizer.h"

typedef enum SpecialToken {
    SPECIAL_CLS,  /* [CLS] or, if it is missing, <cls> or the beginning-of-sequence token */
    SPECIAL_SEP,  /* [SEP] or, if it is missing, <sep> or the end-of-document token */
    SPECIAL_MASK, /* [MASK] or, if it is missing, <mask> */
    /* first token of T5's decoder: the beginning-of-sequence token or, if it is missing, [CLS], <cls> or
     * padding */
    SPECIAL_BOS,
    SPECIAL_EOS /* the end-of-document token or, if it is missing, [SEP] or <sep> */
} SpecialToken;

/* Returns the token's id, or -1 if the vocabulary contains no such token. */
int64_t tokenizer_special(const Tokenizer *, SpecialToken);
/* Sets *ids to the ids of the tokens with which T5 marks masked spans: <extra_id_0>, <extra_id_1>, ... Returns the
 * number of ids. The caller frees *ids. */
int64_t tokenizer_sentinels(const Tokenizer *, int64_t **ids);
/* Sets (*out)[id] to 1 if the token continues a word, that is, if it begins with "##". The caller frees *out. */
Err tokenizer_continuations(const Tokenizer *, unsigned char **out);
