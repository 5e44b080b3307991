/* The "post_processor" of a tokenizer.json: the ids before and after a text when special tokens are
 * requested. TemplateProcessing, RobertaProcessing, BertProcessing, ByteLevel (spans only), and Sequence
 * with at most one that adds ids. Source: tokenizers/src/processors. */
#pragma once

#include <jansson.h>

#include "base/err.h"
#include "tokenizer/model/bpe.h"

enum { POST_TRIMS = 8 };

typedef struct Post {
    Ids before, after;
    struct {
        bool prefix;     /* the pre-tokenizer may have put a blank in front of a text (add_prefix_space) */
    } trims[POST_TRIMS]; /* each takes the blanks at the ends of tokens out of their spans (trim_offsets) */
    size_t n_trims;
} Post;

/* Fills `out`, which must be zero; release both lists. NULL or null: no ids are added. Errors: another kind,
 * a template without exactly one text, an id outside [0, limit), more than POST_TRIMS that trim. */
Err post_load(const json_t *, int32_t limit, Post *out);
