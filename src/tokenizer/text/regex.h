/* Regular expressions of tokenizer.json files (Oniguruma, Ruby syntax, UTF-8) on PCRE2. The pattern is
 * rewritten where the two differ: \s \w \d \b and scripts by Unicode property, inline m = dot matches
 * newline, {n,m}+ repeats instead of being possessive. Syntax without an exact equivalent (nested classes and
 * &&, subexpression calls, \h \R \X ...) is refused. Character classes are those of Unicode 16 (ages.h).
 * Source: Oniguruma doc/RE, ONIG_SYNTAX_RUBY; tokenizers/src/utils/onig.rs. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

typedef struct Regex Regex;

/* literal: the pattern is plain text. Errors: a syntax error, unsupported syntax. */
Err regex_compile(const char *pattern, size_t n, bool literal, Regex **out);
/* The "pattern" of a Replace or Split: {"String": s} or {"Regex": r}. */
Err pattern_load(const json_t *object, const char *where, Regex **out);
void regex_free(Regex *);

/* Working memory of matches; one per thread, for any number of Regexes. */
typedef struct Matcher Matcher;
Matcher *matcher_new(void);
void matcher_free(Matcher *);

typedef struct Span {
    size_t begin, end;
    bool match;
} Span;
typedef struct Spans {
    Span *v;
    size_t n, cap;
} Spans;
void spans_add(Spans *, size_t begin, size_t end, bool match);

/* Replaces `out` by the matches and the text between them, which together cover text[0, n) in order. An empty
 * match directly after a match does not count. Errors: the match exceeds the backtracking limit. */
Err regex_spans(const Regex *, Matcher *, const char *text, size_t n, Spans *out);
