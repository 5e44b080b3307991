/* Text from outside the program must be UTF-8 without NUL. Every reader of text checks it here. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

/* The number of bytes before the first invalid one, or n if all are valid. *cut is set if the text ends
 * inside a character, whose other bytes may follow. */
size_t text_prefix(const char *s, size_t n, bool *cut);
/* The size of the byte-order mark at the beginning of the text: 3, or 0 if there is none. */
size_t text_mark(const char *s, size_t n);

/* The first byte that is not valid text. */
typedef struct TextFault {
    int64_t line, offset; /* line counts from 1, offset from 0 */
    unsigned char byte;
    bool cut; /* the text ends inside a character */
} TextFault;
/* The user error. The error names the format that `head`, the beginning of the text, seems to have: for
 * example UTF-16, an archive or binary data. `where` is "'file'" or an option. */
Err text_error(const char *where, TextFault, const char *head, size_t n);
/* Returns that error unless all bytes are valid text. */
Err text_check(const char *where, const char *s, size_t n);
/* Returns a user error if the file is a Git LFS pointer, which a clone without Git LFS contains instead of a
 * large file. */
Err text_check_pointer(const char *path, const char *s, size_t n);
/* Reads and checks a text file, and removes its byte-order mark. */
Err text_read(const char *path, Str *out);
