/* The "post_processor" of a tokenizer.json: the ids that go around a text when special tokens are asked for.
 * TemplateProcessing, RobertaProcessing, BertProcessing, ByteLevel (offsets only) and Sequence of at most one
 * that adds ids. Source: tokenizers/src/processors. */
#ifndef ISOTRON_TOKENIZER_POST_H
#define ISOTRON_TOKENIZER_POST_H

#include <jansson.h>

#include "base/err.h"
#include "tokenizer/bpe.h"

typedef struct Post {
    Ids before, after;
} Post;

/* Fills `out` (zero to start with; release both lists). NULL or null: nothing is added. Errors: another kind,
 * a template that does not hold the text once, an id outside [0, limit). */
Err post_load(const json_t *, int32_t limit, Post *out);

#endif
