/* Reads a line of JSON Lines as Python's json.loads does. NaN, Infinity and numbers of any size are valid. The last of
 * equal keys counts. A value that is not read may have any escapes and any depth. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

/* The text of a value, inside the line. */
typedef struct JsonText {
    const char *at; /* NULL: the object lacks the key */
    size_t n;
} JsonText;

/* The values of `n` keys in a line that is one object of valid UTF-8. is_first: the line is the first of its file; the
 * error message then suggests what else the file may be. */
Err json_line(const char *line, size_t size, bool is_first, const char *const *keys, int n, JsonText *out);
/* The value of `key`, which must be a string without half of a surrogate pair. The caller frees it. */
Err json_line_string(JsonText, const char *key, json_t **out);
/* The next element of a list, whose `rest` begins as its whole text; false at the end. */
bool json_line_element(JsonText *rest, JsonText *element);
