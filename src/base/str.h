/* A growable byte string, which is always NUL-terminated. The string may contain other NULs, so use `len`
 * instead of strlen. */
#pragma once

#include <stddef.h>

typedef struct Str {
    char *s; /* owned; NULL until a byte is appended; release with str_free */
    size_t len, cap;
} Str;

void str_add(Str *, const void *bytes, size_t n);
void str_puts(Str *, const char *s);
void str_printf(Str *, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Appends at most 60 bytes of untrusted text in quotes, with unprintable bytes as \xNN, so that messages with this text
 * remain one short line. */
void str_quote(Str *, const char *bytes, size_t n);
void str_clear(Str *); /* sets the length to 0, but keeps the memory */
void str_free(Str *);

/* Like str_quote, but returns the text by value, for use as a function argument: quote(name).s is valid until
 * the end of the full expression. */
typedef struct Quoted {
    char s[256];
} Quoted;
Quoted quote(const char *text);
/* Like `quote`, but adds no quotes to a JSON string, because it already has them. */
Quoted quote_json(const char *text);

/* Returns the candidate with the smallest edit distance to `word`, or NULL if this distance exceeds a third of
 * the length of `word`. */
const char *str_nearest(const char *word, const char *const *candidates, size_t n);
