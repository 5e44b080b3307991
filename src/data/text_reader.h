/* Splits input files into records for preprocessing. Depending on the kind of input, a record is a line, a
 * file or a paragraph. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"
#include "data/input.h"
#include "data/preprocess.h"

typedef struct TextReader {
    PreprocessInput kind;
    const char *const *inputs; /* borrowed */
    int num_inputs, next_input;
    InputOptions options;
    Input *input;       /* NULL between files */
    const char *path;   /* the last record's file */
    int64_t line;       /* the last record's first line, counted from 1 */
    int64_t lines_read; /* number of lines read from the open file */
    int64_t bytes;      /* number of bytes read from closed files */
    Str buffer;         /* the current line */
} TextReader;

/* Only PREPROCESS_JSONL can read Parquet files; each row becomes a line. For PREPROCESS_JSONL, lines end as in Python's
 * text files; for other kinds, they end at \n. */
TextReader text_reader(PreprocessInput, const char *const *inputs, int n, InputOptions);
/* Appends the next record to `out`, and sets `path` and `line` to the record's position. Sets *more to false
 * at the end of the last file. */
Err text_reader_next(TextReader *, Str *out, bool *more);
int64_t text_reader_bytes(const TextReader *); /* how many bytes have been read from all files */
void text_reader_close(TextReader *);
