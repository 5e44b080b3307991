/* Reads the files that name and add tokens in the folder of a Hugging Face vocabulary: tokenizer_config.json and, if it
 * has no "added_tokens_decoder", special_tokens_map.json and added_tokens.json. Source: AutoTokenizer of transformers
 * 5.24 (tokenization_utils_base.py, tokenization_utils_tokenizers.py). */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/err.h"

typedef struct HfConfig {
    char *dir;
    bool exists;      /* whether tokenizer_config.json exists */
    json_t *settings; /* keys of tokenizer_config.json and special_tokens_map.json */
    /* {content: token}: added tokens with an "id", and with the name of their file as "from" */
    json_t *declared;
    /* from config.json and tokenizer_config.json; NULL if the key is missing */
    json_t *model_type, *tokenizer_class;
} HfConfig;

/* Fills `out`, which must be zero-initialized. The caller must call hf_config_free even after an error.
 * `tokenizer` is the tokenizer.json, or NULL if there is none. Returns an error if a file is malformed, or if
 * two tokens have the same id. */
Err hf_config_read(const char *dir, const json_t *tokenizer, HfConfig *out);
void hf_config_free(HfConfig *);

/* Returns the text of the token that a setting such as "eos_token" names, or NULL if the setting names no
 * token. */
const char *hf_config_token(const HfConfig *, const char *key);
/* Returns the texts of all named tokens in the settings: {"bos_token": "<s>", ...}. */
json_t *hf_config_named(const HfConfig *);
/* Sets *out to the "added_tokens" of a tokenizer: the tokens of `start`, then the declared tokens by id, then
 * the named and additional tokens that are still missing. A token without an "id" gets the next id. If `plain`
 * is set, the flags of named tokens are removed. */
Err hf_config_added(const HfConfig *, const json_t *start, bool plain, json_t **out);
