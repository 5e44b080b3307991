/* Reads a line of JSON Lines as Python's json.loads does. NaN, Infinity and numbers of any size are valid. If
 * a key is repeated, its last value is used. The value of a key that is not requested may contain any escapes
 * and may be nested to any depth. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

/* A value's text within the line. */
typedef struct JsonText {
    const char *at; /* NULL if the object lacks the key */
    size_t n;
} JsonText;

/* Finds the values of `n` keys in a line, which must be one JSON object in valid UTF-8. is_first states whether the
 * line is the first in its file; if so, error messages suggest other file formats. */
Err json_line(const char *line, size_t size, bool is_first, const char *const *keys, int n, JsonText *out);
/* Decodes the value of `key`, which must be a string without unpaired surrogates. The caller frees *out. */
Err json_line_string(JsonText, const char *key, json_t **out);
/* Sets *element to the next element of a list. Returns false at the end of the list. Before the first call,
 * `rest` is the text of the list. */
bool json_line_element(JsonText *rest, JsonText *element);
