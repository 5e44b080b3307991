/* Builds automata (infer/grammar.h) for JSON text. Parts are built from the end of the text: each function
 * returns the first node of a part that continues at `next`. The text contains no white space, except for an
 * optional space after a colon or a comma. */
#pragma once

#include <jansson.h>
#include <stddef.h>

#include "infer/grammar.h"
#include "tokenizer/tokenizer.h"

typedef enum JsonRule {
    RULE_STRING,
    RULE_INTEGER,
    RULE_NUMBER,
    RULE_VALUE,
    RULE_OBJECT,
    RULE_ARRAY,
    JSON_RULES
} JsonRule;

typedef struct GrammarBuilder {
    GrammarNode *node; /* [n] owned; node 0 is the start of the grammar */
    int32_t n, room;   /* room: number of allocated nodes */
    int32_t *rule;     /* [rules] owned; the first node of each rule, or -1 */
    int32_t rules;
} GrammarBuilder;

void builder_init(GrammarBuilder *);
void builder_free(GrammarBuilder *);
/* Makes `first` the start of the grammar, and resolves calls. The caller frees the nodes [n]. */
GrammarNode *builder_end(GrammarBuilder *, int32_t first, int64_t *n);

/* The node at which a text or a rule ends. */
int32_t build_end(GrammarBuilder *);
int32_t build_bytes(GrammarBuilder *, const char *bytes, size_t n, int32_t next);
int32_t build_text(GrammarBuilder *, const char *text, int32_t next);
int32_t build_token(GrammarBuilder *, int32_t token, int32_t next);
/* An optional newline. */
int32_t build_newline(GrammarBuilder *, int32_t next);
/* The text of a marker or, if the vocabulary contains the marker, its token. */
int32_t build_marker(GrammarBuilder *, const Tokenizer *, const char *marker, int32_t next);
int32_t build_either(GrammarBuilder *, int32_t a, int32_t b);
/* A node that continues at any of the nodes [n], n >= 1. */
int32_t build_any(GrammarBuilder *, const int32_t *nodes, int64_t n);
/* A node whose continuation build_resolve sets later. */
int32_t build_loop(GrammarBuilder *);
void build_resolve(GrammarBuilder *, int32_t loop, int32_t is);
/* A colon or a comma, and an optional space. */
int32_t build_colon(GrammarBuilder *, int32_t next);
int32_t build_comma(GrammarBuilder *, int32_t next);

/* Adds a rule. rule_begins sets the rule's first node. */
int32_t build_rule(GrammarBuilder *);
void rule_begins(GrammarBuilder *, int32_t rule, int32_t first);
int32_t build_call(GrammarBuilder *, int32_t rule, int32_t next);
/* A JSON value. An integer has at most 15 digits; a number has at most 15 digits before and after the decimal
 * point, and at most two digits in the exponent. A string contains no \u0000 and no escaped surrogate. */
int32_t build_json(GrammarBuilder *, JsonRule, int32_t next);
/* Text without control characters, up to and including the first occurrence of the tag. `token` is the tag's token, or
 * -1 if the vocabulary has no such token. The first byte of the tag must not occur in the rest of the tag. */
int32_t build_until(GrammarBuilder *, const char *tag, int32_t token, int32_t next);
/* The text of one JSON value. */
int32_t build_constant(GrammarBuilder *, const json_t *, int32_t next);
