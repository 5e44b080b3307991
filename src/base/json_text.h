/* Reads and writes JSON text that jansson does not handle. */
#pragma once

#include <jansson.h>

#include "base/str.h"

/* The length of the string at s, including its quotes. It is at most n. */
size_t json_text_string(const char *s, size_t n);

/* Replaces numbers that Python's json accepts and jansson refuses. An integer of more than 64 bits, such as
 * transformers' model_max_length, becomes a real number. NaN, Infinity and numbers beyond double become strings, so
 * that a reader that expects a number rejects them. */
void json_text_numbers(Str *json);

/* Appends the text that Python's json.dumps(json, indent=indent) prints at this depth; indent 0: the text of
 * json.dumps(json), on one line. jansson prints 17 digits of every real number, and different escapes. Bytes
 * that are not UTF-8 (json_string_nocheck) are printed as \udcXX, as Python prints them in file names. */
void json_print(Str *, const json_t *, int indent, int depth);
/* Formats a number like Python's repr(float): with the fewest digits that read back as the same number, and
 * with an exponent if the magnitude is below 1e-4 or at least 1e16. */
void json_print_real(Str *, double);
/* A number; null for a NaN or an infinity, which JSON does not have. */
json_t *json_finite(double);
