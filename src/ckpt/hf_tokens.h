/* Token ids in a Hugging Face folder: bos_token_id, eos_token_id and pad_token_id, each an id or a list of
 * ids. generate() of transformers stops at those of generation_config.json. */
#ifndef ISOTRON_CKPT_HF_TOKENS_H
#define ISOTRON_CKPT_HF_TOKENS_H

#include <jansson.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

/* Adds those of `from` that `tokens` has not. One that is no token of the vocabulary is left out and noted;
 * `where` names the source of `from` in the note. */
void hf_tokens_take(json_t *tokens, const json_t *from, const char *where, int64_t vocab_size, Str *notes);
/* The same from the folder's generation_config.json, if there is one, and then from its config.json. */
Err hf_tokens_read(json_t *tokens, const char *dir, int64_t vocab_size, Str *notes);

#endif
