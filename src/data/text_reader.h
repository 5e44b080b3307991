/* Splits input files into records for preprocessing: lines, files or paragraphs, in order, with their line
 * numbers. */
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
    const char *path;   /* of the last record */
    int64_t line;       /* first line of that record, from 1 */
    int64_t lines_read; /* of the open file */
    int64_t bytes;      /* of the files that are closed */
    Str buffer;         /* a line */
} TextReader;

/* The columns of Parquet files need kind PREPROCESS_JSONL; a line is then a row. Lines of that kind end as in Python's
 * text files, others at \n. */
TextReader text_reader(PreprocessInput, const char *const *inputs, int n, InputOptions);
/* Appends the next record to `out` and sets path and line; *more is false at the end. */
Err text_reader_next(TextReader *, Str *out, bool *more);
int64_t text_reader_bytes(const TextReader *); /* of all files, read so far */
void text_reader_close(TextReader *);
