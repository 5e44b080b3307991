/* UTF-8 as defined by Unicode (no surrogates, no overlong forms, at most U+10FFFF). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

/* Reads one character of valid UTF-8 at s and returns its number of bytes. */
size_t utf8_next(const char *s, uint32_t *character);
/* Returns the start of the character that ends directly before `at`. The text must be valid UTF-8, and `at` > 0. */
size_t utf8_prev(const char *s, size_t at);
/* Returns whether a byte of valid UTF-8 is the first byte of a character. */
static inline bool utf8_begins(char byte) { return ((unsigned char)byte & 0xC0) != 0x80; }
size_t utf8_count(const char *s, size_t n); /* number of characters in valid UTF-8 */
void utf8_put(Str *, uint32_t character);
bool utf8_valid(const char *s, size_t n);
/* Returns the number of bytes before the first invalid byte, or n if all bytes are valid. Sets *cut if the text ends
 * inside a character. */
size_t utf8_prefix(const char *s, size_t n, bool *cut);
/* Appends the text, with each maximal invalid subpart replaced by one U+FFFD (Unicode 3.9), like Python's
 * errors="replace". */
void utf8_repair(const char *s, size_t n, Str *out);
/* Returns an array [n + 1] that maps each byte of valid UTF-8 to the index of its character. Element n is the number
 * of characters; n must be below 2^32. The caller frees the array. */
uint32_t *utf8_characters(const char *s, size_t n);
