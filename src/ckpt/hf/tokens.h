/* Reads the token ids in a Hugging Face folder: bos_token_id, eos_token_id, pad_token_id and
 * decoder_start_token_id. The value of each key is an id or a list of ids. The generate() function of
 * transformers stops at the eos_token_id in generation_config.json. */
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

#define HF_TOKENS "hf_tokens" /* the key under which a checkpoint's state stores the token ids of an import */

/* Adds the ids in `from` that `tokens` lacks. Skips ids outside the vocabulary, and prints a note. `where` names the
 * source of `from` in the note. */
void hf_tokens_take(json_t *tokens, const json_t *from, const char *where, int64_t vocab_size, Str *notes);
/* Calls hf_tokens_take for the folder's generation_config.json, if that file exists, and then for its
 * config.json. */
Err hf_tokens_read(json_t *tokens, const char *dir, int64_t vocab_size, Str *notes);
