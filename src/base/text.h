/* Text from outside the program must be UTF-8 without NUL. All code that reads text must check it with the functions in
 * this file. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

/* Returns the number of bytes before the first invalid byte, or n if all bytes are valid. Sets *cut if the text ends
 * inside a character whose remaining bytes may follow. */
size_t text_prefix(const char *s, size_t n, bool *cut);
/* Returns the size of the byte-order mark at the start of the text: 3, or 0 if there is none. */
size_t text_mark(const char *s, size_t n);

/* The position of the first byte that is not valid text. */
typedef struct TextFault {
    int64_t line, offset; /* `line` is counted from 1, and `offset` from 0 */
    unsigned char byte;
    bool cut; /* whether the text ends inside a character */
} TextFault;
/* Returns a user error about invalid text. The error names the format that the text appears to have, such as UTF-16, an
 * archive or binary data. `head` is the start of the text. `where` names the source: "'file'" or an option. */
Err text_error(const char *where, TextFault, const char *head, size_t n);
/* Returns the error from text_error if any byte is not valid text. */
Err text_check(const char *where, const char *s, size_t n);
/* Returns a user error if the file is a Git LFS pointer. A repository that was cloned without Git LFS
 * contains such pointers instead of large files. */
Err text_check_pointer(const char *path, const char *s, size_t n);
/* Reads and checks a text file, and removes its byte-order mark. */
Err text_read(const char *path, Str *out);
