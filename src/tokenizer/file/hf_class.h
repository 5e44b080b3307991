/* Tokenizer classes of transformers that read only a vocabulary from tokenizer.json or other files. A class
 * builds the other parts of the tokenizer from settings in tokenizer_config.json, such as do_lower_case
 * (BertTokenizer) or add_prefix_space (RobertaTokenizer). Source: AutoTokenizer and
 * models/<model>/tokenization_<model>.py of transformers 5.24. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/err.h"
#include "tokenizer/file/hf_config.h"

typedef struct HfClass {
    /* names of the class, and model types in config.json that select the class */
    const char *names, *model_types;
    const char *model;  /* the model type in a tokenizer.json */
    const char *tokens; /* default tokens: "key=text key=text" */
    json_t *(*parts)(const HfConfig *, json_t *charsmap);
    /* The settings that name the tokens before and after a text. Unless own_post or forgets_post is set, a
     * post_processor in tokenizer.json takes precedence. If `before` and `after` are both NULL, the tokens
     * are bos_token (if add_bos_token is set) and eos_token (if add_eos_token is set). */
    const char *before, *after;
    /* The form of a pair of texts, A and B. The characters < and > represent the tokens `before` and `after`,
     * and the tokens after | have type 1. NULL means <A>|<B>. */
    const char *pair;
    bool own_post, forgets_post, plain;
} HfClass;

/* Sets *out to the class that AutoTokenizer chooses, or to NULL if tokenizer.json can be used unchanged.
 * `tokenizer` is NULL if there is no tokenizer.json. Returns an error if the class is not supported. */
Err hf_class_find(const HfConfig *, const json_t *tokenizer, const HfClass **out);
/* Returns the class with the given name, or NULL if the class is not supported. */
const HfClass *hf_class(const char *name);

/* Builds a tokenizer.json from the vocabulary of `root`, and sets the class's default tokens in the settings. Returns
 * an error if the vocabulary belongs to another kind of model. */
Err hf_class_build(const HfClass *, HfConfig *, const json_t *root, json_t **out);

/* Returns a boolean from the settings. If the key is missing or null, returns the fallback. */
bool hf_class_flag(const HfConfig *, const char *key, bool fallback);
/* Like hf_class_flag, but returns false if the value is null. */
bool hf_class_flag_or_null(const HfConfig *, const char *key, bool fallback);
/* Returns how many tokens <extra_id_0>, <extra_id_1>, ... a T5 tokenizer has. */
int hf_class_sentinels(const HfConfig *);
