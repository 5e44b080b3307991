/* The text of JSON files, before jansson parses it. */
#ifndef ISOTRON_BASE_JSON_TEXT_H
#define ISOTRON_BASE_JSON_TEXT_H

#include "base/str.h"

/* Bytes of the string, with its quotes, at the beginning of s; at most n. */
size_t json_text_string(const char *s, size_t n);

/* Python's json writes and reads numbers that jansson refuses. An integer of more than 64 bits, such as transformers'
 * model_max_length, becomes a real number; NaN, Infinity and numbers above any double become strings, so that a reader
 * of that value refuses it. */
void json_text_numbers(Str *json);

#endif
