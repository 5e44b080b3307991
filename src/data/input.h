/* Reads input files as streams of text. The first bytes of a file determine whether it is plain, compressed
 * (data/unpack.h) or Parquet (data/parquet/parquet.h). The path "-" means standard input. The text is
 * returned as UTF-8, and contains no NUL character. A byte-order mark at the start is skipped. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

typedef struct Input Input;

bool input_is_stdin(const char *path);

typedef struct InputOptions {
    /* The columns of a Parquet file to convert to text. Each row becomes a JSON object {"<name>": "<string>", ...} that
     * omits missing values. */
    const char *const *columns; /* borrowed */
    /* if 0, a Parquet file is a user error, because the caller does not expect JSON Lines */
    int num_columns;
    const char *encoding; /* iconv's name of the encoding; NULL means UTF-8. Parquet is always UTF-8 */
} InputOptions;

/* Returns a user error if iconv does not support the encoding. */
Err input_check_encoding(const char *encoding);
/* Returns a user error if the path is a folder or cannot be opened, or if a Parquet file cannot be read or is a
 * pipe. */
Err input_open(const char *path, InputOptions, Input **out);
/* input_text and input_line append text to `out`, and set *more to false at the end of the file. Both
 * functions return an error if the data is damaged or truncated, if the text is not valid in its encoding, or
 * if reading fails. */
Err input_text(Input *, Str *out, bool *more); /* appends the next part of the text */
/* Appends the next line without its newline. A newline is \n; with any_newline, also \r\n or \r, as in Python's text
 * files. */
Err input_line(Input *, bool any_newline, Str *out, bool *more);
int64_t input_bytes(const Input *); /* how many bytes of the file have been read */
void input_close(Input *);
