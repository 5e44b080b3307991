/* The files next to a vocabulary of Hugging Face that name and add tokens: tokenizer_config.json, and without its
 * "added_tokens_decoder" also special_tokens_map.json and added_tokens.json. Source: AutoTokenizer of transformers 5.24
 * (tokenization_utils_base.py, tokenization_utils_tokenizers.py). */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/err.h"

typedef struct HfConfig {
    char *dir;
    bool exists;      /* there is a tokenizer_config.json */
    json_t *settings; /* its keys, and those of special_tokens_map.json */
    json_t
        *declared; /* {content: token}: added tokens to which a file gives an "id"; "from" names the file */
    json_t *model_type, *tokenizer_class; /* borrowed: of config.json and tokenizer_config.json, or NULL */
} HfConfig;

/* Fills `out`, which must be zero; release it in any case. tokenizer: the tokenizer.json, NULL: there is none. Errors:
 * a malformed file, two tokens with one id. */
Err hf_config_read(const char *dir, const json_t *tokenizer, HfConfig *out);
void hf_config_free(HfConfig *);

/* The text of a token of the settings, such as "eos_token"; NULL: none. */
const char *hf_config_token(const HfConfig *, const char *key);
/* The "added_tokens" of a tokenizer: those of `start`, then declared ones by id, then named ones and additional ones
 * that are missing. A token without an "id" gets the next one. plain: named tokens lose their flags. */
Err hf_config_added(const HfConfig *, const json_t *start, bool plain, json_t **out);
