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
    const char *path;   /* the last record's file */
    int64_t line;       /* the last record's first line, counted from 1 */
    int64_t lines_read; /* number of lines read from the open file */
    int64_t bytes;      /* total size of the closed files in bytes */
    Str buffer;         /* the current line */
} TextReader;

/* Only PREPROCESS_JSONL can read Parquet files; each of their rows is a line. For PREPROCESS_JSONL, lines end as in
 * Python's text files; for other kinds, lines end at \n. */
TextReader text_reader(PreprocessInput, const char *const *inputs, int n, InputOptions);
/* Appends the next record to `out`, and sets its path and line. Sets *more to false at the end. */
Err text_reader_next(TextReader *, Str *out, bool *more);
int64_t text_reader_bytes(const TextReader *); /* how many bytes have been read from all files */
void text_reader_close(TextReader *);
