/* A tokenizer from the parts of a tokenizer.json, for the types that convert their files to it. */
#pragma once

#include <jansson.h>

#include "tokenizer/model/token_model.h"
#include "tokenizer/type.h"

/* Sets impl and vocab_size. made: replaces "model" and is taken over; NULL: none. */
Err hf_load(const json_t *root, const TokenModel *made, const TokenizerConfig *, Tokenizer *);
/* The first of the field's usual end-of-text tokens that is special here; -1: none. */
int32_t hf_usual_eod(const Tokenizer *);

/* Special tokens with usual names as the beginning and padding that the tokenizer lacks. */
void hf_take_usual(Tokenizer *);
/* Replaces the tokens that TOKENIZER_ADD_SPECIAL puts around a text; -1: none. */
void hf_put_around(Tokenizer *, int32_t before, int32_t after);
/* Texts never have special tokens, as with TOKENIZER_SPECIAL_AS_TEXT. */
void hf_split_special(Tokenizer *);

Err hf_encode(const Tokenizer *, unsigned flags, const char *text, size_t n, Ids *out);
Err hf_decode(const Tokenizer *, unsigned flags, const int32_t *ids, size_t n, Str *out, size_t *starts);
int32_t hf_token_id(const Tokenizer *, const char *token);
const char *hf_token_text(const Tokenizer *, int32_t id, size_t *n);
bool hf_is_special(const Tokenizer *, int32_t id);
void hf_free(void *impl);

/* A type that differs only in how it is opened. */
#define HF_TYPE(name, open)                                                                                  \
    { name, open, hf_encode, hf_decode, hf_token_id, hf_token_text, hf_is_special, hf_free }
