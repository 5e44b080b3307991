/* A tokenizer that consists of the parts of a tokenizer.json. Several tokenizer types convert their files to
 * this format. */
#pragma once

#include <jansson.h>

#include "tokenizer/model/token_model.h"
#include "tokenizer/type.h"

/* Sets impl and vocab_size. If `made` is not NULL, it replaces the "model" of `root`, and the tokenizer takes
 * ownership of it. */
Err hf_load(const json_t *root, const TokenModel *made, const TokenizerConfig *, Tokenizer *);
/* Returns the first special token that has a common end-of-text name, or -1 if there is none. */
int32_t hf_usual_eod(const Tokenizer *);

/* Sets a missing beginning-of-sequence or padding token to a special token with a common name, such as <s> or
 * <pad>. */
void hf_take_usual(Tokenizer *);
/* Replaces the tokens that TOKENIZER_ADD_SPECIAL adds before and after a text; -1 means no token. */
void hf_put_around(Tokenizer *, int32_t before, int32_t after);
/* Makes the tokenizer encode every text with TOKENIZER_SPECIAL_AS_TEXT. */
void hf_split_special(Tokenizer *);

Err hf_encode(const Tokenizer *, unsigned flags, const char *text, size_t n, Ids *out);
Err hf_decode(const Tokenizer *, unsigned flags, const int32_t *ids, size_t n, Str *out, size_t *starts);
int32_t hf_token_id(const Tokenizer *, const char *token);
const char *hf_token_text(const Tokenizer *, int32_t id, size_t *n);
bool hf_is_special(const Tokenizer *, int32_t id);
void hf_free(void *impl);

/* Defines a tokenizer type that differs from other Hugging Face types only in `open`. */
#define HF_TYPE(name, open)                                                                                  \
    { name, open, hf_encode, hf_decode, hf_token_id, hf_token_text, hf_is_special, hf_free }
