/* Text from outside of the program: UTF-8 without NUL. Each reader of text checks it here. */
#ifndef ISOTRON_BASE_TEXT_H
#define ISOTRON_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

/* Bytes before the first that is no text; n: there is none. *cut: the bytes from there on begin a character, and their
 * rest may follow. */
size_t text_prefix(const char *s, size_t n, bool *cut);
/* Bytes of the byte-order mark at the beginning: 3 or 0. */
size_t text_mark(const char *s, size_t n);

/* The first byte that is no text. */
typedef struct TextFault {
    int64_t line, offset; /* from 1; from 0 */
    unsigned char byte;
    bool cut; /* the text ends inside of a character */
} TextFault;
/* The user error. It says what the beginning of the text, `head`, looks like: UTF-16, an archive, binary data. `where`
 * is "'file'" or an option. */
Err text_error(const char *where, TextFault, const char *head, size_t n);
/* That error unless all bytes are text. */
Err text_check(const char *where, const char *s, size_t n);
/* A user error if the content of the file is a pointer of Git LFS, which a clone without it has instead of a large file. */
Err text_check_pointer(const char *path, const char *s, size_t n);
/* file_read of a text, without its byte-order mark; text_check's error if it is none. */
Err text_read(const char *path, Str *out);

#endif
