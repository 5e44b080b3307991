/* Input files as streams of text: plain, compressed (data/unpack.h) or Parquet (data/parquet/parquet.h), recognised by
 * their first bytes; "-" is standard input. All text of data is read here, so that it is UTF-8 without NUL. A
 * byte-order mark at the beginning is skipped. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

typedef struct Input Input;

bool input_is_stdin(const char *path);

typedef struct InputOptions {
    /* The columns of a Parquet file that become text, one JSON object per row: {"<name>": "<string>", ...}. A row
     * without a value lacks the key. */
    const char *const *columns; /* borrowed */
    int num_columns;            /* 0: a Parquet file is a user error, because the text is not JSON Lines */
    const char *encoding;       /* of the bytes, as iconv names it; NULL: UTF-8. Parquet has UTF-8 only */
} InputOptions;

/* A user error if iconv does not support the encoding. */
Err input_check_encoding(const char *encoding);
/* A user error for a folder, a file that cannot be opened, and a Parquet file that cannot be read or is a pipe. */
Err input_open(const char *path, InputOptions, Input **out);
/* Both append text to `out`; *more is false at the end. Errors: damaged or truncated data, text that is not
 * valid in its encoding, and the system's. */
Err input_text(Input *, Str *out, bool *more); /* some of it */
/* The next line without its newline: \n, or with any_newline \n, \r\n or \r, as Python reads text files. */
Err input_line(Input *, bool any_newline, Str *out, bool *more);
int64_t input_bytes(const Input *); /* of the file, read so far */
void input_close(Input *);
