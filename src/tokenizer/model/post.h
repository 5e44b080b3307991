/* The "post_processor" of a tokenizer.json, which adds ids before and after a text if special tokens are
 * requested. The post-processor may be TemplateProcessing, RobertaProcessing, BertProcessing, ByteLevel (which changes
 * only spans), or a Sequence in which at most one processor adds ids. Source: tokenizers/src/processors. */
#pragma once

#include <jansson.h>

#include "base/err.h"
#include "tokenizer/model/bpe.h"

enum { POST_TRIMS = 8 };

typedef struct Post {
    Ids before, after;
    struct {
        bool prefix;     /* add_prefix_space: whether the pre-tokenizer may have prepended a blank */
    } trims[POST_TRIMS]; /* trim_offsets: spans exclude the blanks at both ends of a token */
    size_t n_trims;
} Post;

/* Fills `out`, which must be zero-initialized. Release both lists with ids_free. If the object is NULL or the
 * JSON value null, no ids are added. Returns an error for an unknown type, for a template that does not contain
 * exactly one text, for an id outside [0, limit), and for more than POST_TRIMS processors that trim spans. */
Err post_load(const json_t *, int32_t limit, Post *out);
