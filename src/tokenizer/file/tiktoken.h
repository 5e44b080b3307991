/* Reads a tekken.json, and defines the regexes with which tiktoken's encodings split a text. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/err.h"
#include "tokenizer/model/token_model.h"

/* Sets *out to the regex of v1, v2 (Megatron-LM), cl100k or o200k (OpenAI). Any other name is an error. */
Err tiktoken_pattern(const char *name, const char **out);
/* Returns whether a JSON file is Mistral's tekken.json. */
bool tekken_is(const json_t *file);
/* Converts a tekken.json to a tokenizer.json without a model, and to the model `made`. Special tokens have the
 * first ids, and the other tokens follow by rank. Returns an error if the file is malformed. */
Err tekken_load(const json_t *file, json_t **root, TokenModel *made);
