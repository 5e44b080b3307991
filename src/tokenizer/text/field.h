/* Reads fields of an unchecked JSON object, and checks their types. `where` is the object's name in messages,
 * such as "pre_tokenizer". If a field is absent or null, field_bool sets *out to the fallback, field_int and
 * field_text return an error, and the other functions set *out to NULL. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* Reads a JSON file. The caller must release the result with json_decref. Real numbers have the values that serde_json
 * would read (serde_number.h). Returns an error if the file is unreadable, malformed, or nested too deeply, or if it
 * has duplicate keys. */
Err json_file(const char *path, json_t **out);

Err field_bool(const json_t *object, const char *where, const char *key, bool fallback, bool *out);
Err field_int(const json_t *object, const char *where, const char *key, int64_t *out);
/* Sets *out to a field's text, which is borrowed. If n is NULL, a NUL inside the text is an error. */
Err field_text(const json_t *object, const char *where, const char *key, const char **out, size_t *n);
/* Sets *out to the object in a field, or to NULL if the field is absent or null. */
Err field_object(const json_t *object, const char *where, const char *key, const json_t **out);
Err field_array(const json_t *object, const char *where, const char *key, const json_t **out);
