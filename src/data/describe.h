/* JSON text exactly as Python's json.dumps(..., indent=4) prints it, because Megatron-LM names cache files by
 * its MD5. */
#ifndef ISOTRON_DATA_DESCRIBE_H
#define ISOTRON_DATA_DESCRIBE_H

#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

/* A string in quotes, ASCII: \uXXXX in lower case, surrogate pairs, \udcXX for a byte that is not UTF-8. */
void describe_string(Str *, const char *text);
/* repr(float): the shortest digits that read back equal; exponent notation below 1e-4 and at or above 1e16.
 * */
void describe_double(Str *, double);
/* A JSON object of strings, numbers, true, false and null, its members indented by `depth` levels.
 * A user error if `json` is anything else. */
Err describe_object(Str *, const char *json, int depth);
/* A newline and `depth` levels of four blanks. */
void describe_newline(Str *, int depth);
/* The same and a member's name. */
void describe_key(Str *, const char *key, int depth);

#endif
