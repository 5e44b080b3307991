/* The "post_processor" of a tokenizer.json: the ids before and after a text when special tokens are
 * requested. TemplateProcessing, RobertaProcessing, BertProcessing, ByteLevel (offsets only), and Sequence
 * with at most one that adds ids. Source: tokenizers/src/processors. */
#ifndef ISOTRON_TOKENIZER_POST_H
#define ISOTRON_TOKENIZER_POST_H

#include <jansson.h>

#include "base/err.h"
#include "tokenizer/bpe.h"

typedef struct Post {
    Ids before, after;
} Post;

/* Fills `out`, which must be zero; release both lists. NULL or null: no ids are added. Errors: another kind,
 * a template without exactly one text, an id outside [0, limit). */
Err post_load(const json_t *, int32_t limit, Post *out);

#endif
