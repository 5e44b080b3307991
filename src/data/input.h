/* Input files as streams of text: plain, gzip (RFC 1952), Zstandard (RFC 8878) or Parquet (data/parquet.h), told
 * by their first bytes; "-" is standard input. A file may consist of several compressed parts. */
#ifndef ISOTRON_DATA_INPUT_H
#define ISOTRON_DATA_INPUT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

typedef struct Input Input;

bool input_is_stdin(const char *path);

/* The columns of a Parquet file that become text, one JSON object per row: {"<name>": "<string>", ...}. A row
 * without a value lacks the key. */
typedef struct InputColumns {
    const char *const *names; /* borrowed */
    int n;                    /* 0: a Parquet file is a user error, because the text is no JSON Lines */
} InputColumns;

/* A user error for a folder, a file that cannot be opened, and a Parquet file that cannot be read or is a pipe. */
Err input_open(const char *path, InputColumns, Input **out);
FILE *input_text(Input *);          /* uncompressed; closed by input_close */
int64_t input_bytes(const Input *); /* of the file, read so far */
/* An error if reading failed: damaged or truncated data, strings that are not UTF-8, or the system's. Frees the
 * input. */
Err input_close(Input *);

#endif
