/* UTF-8 as Unicode defines it (no surrogates, no overlong forms, at most U+10FFFF). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

/* Reads one character of valid UTF-8 at s and returns its number of bytes. */
size_t utf8_next(const char *s, uint32_t *character);
/* Returns the start of the character that ends just before `at`, in valid UTF-8 and for at > 0. */
size_t utf8_prev(const char *s, size_t at);
/* Whether a byte of valid UTF-8 is the first of its character. */
static inline bool utf8_begins(char byte) { return ((unsigned char)byte & 0xC0) != 0x80; }
size_t utf8_count(const char *s, size_t n); /* characters of valid UTF-8 */
void utf8_put(Str *, uint32_t character);
bool utf8_valid(const char *s, size_t n);
/* The number of bytes before the first invalid one, or n if all are valid. *cut is set if the text ends
 * inside a character. */
size_t utf8_prefix(const char *s, size_t n, bool *cut);
/* Appends the text with each maximal invalid subpart replaced by one U+FFFD (Unicode 3.9, as Python's
 * errors="replace"). */
void utf8_repair(const char *s, size_t n, Str *out);
/* The number of the character that each byte of valid UTF-8 belongs to, [n + 1]; the last element is the number of
 * characters. n < 2^32. The caller frees it. */
uint32_t *utf8_characters(const char *s, size_t n);
