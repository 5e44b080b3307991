/* Reads and writes JSON text that jansson does not support. */
#pragma once

#include <jansson.h>

#include "base/str.h"

/* Returns the length of the string at s, including its quotes, but at most n. */
size_t json_text_string(const char *s, size_t n);

/* Replaces numbers that Python's json module accepts but jansson rejects. An integer that needs more than 64 bits, such
 * as transformers' model_max_length, becomes a real number. NaN, Infinity and numbers outside the range of double
 * become strings, so that a reader that expects a number rejects them. */
void json_text_numbers(Str *json);

/* Appends the text that Python's json.dumps(json, indent=indent) produces for a value nested `depth` levels deep. If
 * indent is 0, appends the text of json.dumps(json), on one line. jansson cannot be used because it prints 17 digits of
 * every real number, and uses different escapes. Bytes that are not valid UTF-8 (json_string_nocheck) are printed as
 * \udcXX, like Python's surrogateescape. */
void json_print(Str *, const json_t *, int indent, int depth);
/* Formats a number as Python's repr(float) does: with the fewest digits that read back as the same number, and with an
 * exponent if the magnitude is below 1e-4 or at least 1e16. */
void json_print_real(Str *, double);
/* Returns the number as JSON. NaN and infinities, which JSON cannot represent, become null. */
json_t *json_finite(double);
