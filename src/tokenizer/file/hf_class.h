/* Tokenizer classes of transformers that use only the vocabulary of tokenizer.json, or of other files. They build the
 * rest from tokenizer_config.json: do_lower_case of a BertTokenizer, add_prefix_space of a RobertaTokenizer. Source:
 * AutoTokenizer and models/<model>/tokenization_<model>.py of transformers 5.24. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/err.h"
#include "tokenizer/file/hf_config.h"

typedef struct HfClass {
    const char *names,
        *model_types;   /* words; the class is also chosen for these model types of config.json */
    const char *model;  /* the type of its model in a tokenizer.json */
    const char *tokens; /* default tokens, "key=text" words */
    json_t *(*parts)(const HfConfig *, json_t *charsmap);
    /* Tokens around a text, by key. Without `own_post` they are those of tokenizer.json, or bos_token and eos_token if
     * add_bos_token and add_eos_token are set. */
    const char *before, *after;
    /* The tokens of a pair of texts A and B: < and > mark the tokens before and after, | begins
     * type 1. NULL: <A>|<B> */
    const char *pair;
    bool own_post, forgets_post, plain;
} HfClass;

/* The class that AutoTokenizer chooses; NULL: the one that uses tokenizer.json unchanged. tokenizer: NULL if there is
 * no tokenizer.json. Errors: a class that is not supported. */
Err hf_class_find(const HfConfig *, const json_t *tokenizer, const HfClass **out);
/* By name; NULL: it is not supported. */
const HfClass *hf_class(const char *name);

/* A tokenizer with the vocabulary of `root`. Sets the class's default tokens in the settings. Errors: a vocabulary of
 * another kind of model. */
Err hf_class_build(const HfClass *, HfConfig *, const json_t *root, json_t **out);

/* A boolean of the settings. */
bool hf_class_flag(const HfConfig *, const char *key, bool fallback);
/* The same, and null is false. */
bool hf_class_flag_or_null(const HfConfig *, const char *key, bool fallback);
/* The number of <extra_id_0> and so on of a T5. */
int hf_class_sentinels(const HfConfig *);
