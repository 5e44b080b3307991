/* Runs the regular expressions of tokenizer.json files (Oniguruma, Ruby syntax, UTF-8) with PCRE2. Patterns are
 * rewritten where PCRE2 differs from Oniguruma. \s \w \d \b and scripts become Unicode properties, inline m
 * means that dot matches newline, and {n,m}+ is a repetition instead of a possessive quantifier. Syntax without
 * an exact equivalent is refused, such as negated nested classes, &&, subexpression calls, \h, \R and \X.
 * Character classes follow Unicode 16 (ages.h). Source: Oniguruma doc/RE, ONIG_SYNTAX_RUBY;
 * tokenizers/src/utils/onig.rs. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

typedef struct Regex Regex;

/* Compiles a pattern. If `literal` is set, the pattern is plain text. Returns an error if the syntax is wrong
 * or not supported. */
Err regex_compile(const char *pattern, size_t n, bool literal, Regex **out);
/* Compiles the "pattern" of a Replace or Split step: {"String": s} or {"Regex": r}. */
Err pattern_load(const json_t *object, const char *where, Regex **out);
void regex_free(Regex *);

/* The working memory for matching. Each thread needs one Matcher, which works with any number of Regexes. */
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

/* Sets `out` to the matches and the text between them, which together cover text[0, n) in order. An empty
 * match directly after another match is ignored. Returns an error if a match exceeds the backtracking
 * limit. */
Err regex_spans(const Regex *, Matcher *, const char *text, size_t n, Spans *out);
