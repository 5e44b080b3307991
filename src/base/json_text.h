/* Prepares the text of JSON files for jansson. */
#ifndef ISOTRON_BASE_JSON_TEXT_H
#define ISOTRON_BASE_JSON_TEXT_H

#include "base/str.h"

/* The length of the string at s, with its quotes; at most n. */
size_t json_text_string(const char *s, size_t n);

/* Replaces numbers that Python's json accepts and jansson refuses. An integer of more than 64 bits, such as
 * transformers' model_max_length, becomes a real number. NaN, Infinity and numbers beyond double become strings, so
 * that a reader that needs a number there refuses them. */
void json_text_numbers(Str *json);

#endif
