/* The patterns by which tiktoken's encodings split a text. */
#ifndef ISOTRON_TOKENIZER_TIKTOKEN_H
#define ISOTRON_TOKENIZER_TIKTOKEN_H

#include "base/err.h"

/* The regex of v1, v2 (Megatron-LM), cl100k or o200k (OpenAI). Errors: another name. */
Err tiktoken_pattern(const char *name, const char **out);

#endif
