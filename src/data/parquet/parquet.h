/* Reads columns of strings from a Parquet file (apache/parquet-format: README.md, parquet.thrift, Encodings.md,
 * Compression.md), row by row.
 *
 * Supported are top-level columns of type BYTE_ARRAY, required or optional; data pages of both versions; dictionaries;
 * the encodings of data/parquet/values.h; and the codecs SNAPPY, GZIP, BROTLI, ZSTD and LZ4_RAW. The file may have any
 * other columns. Lists, maps and structs, LZO, the older LZ4, encryption and columns in other files are user errors
 * that name them.
 *
 * The file is mapped. Memory: the places of the wanted columns in each row group, and a page and a dictionary
 * of each wanted column. A page has at most 1 GiB, and above 64 MiB at most 32768 times its compressed size.
 * The file is untrusted: a damaged one is a user error. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

typedef struct Parquet Parquet;

typedef struct ParquetText {
    const char *bytes; /* any bytes, without a NUL at the end; NULL: the row has no value here */
    size_t n;
} ParquetText;

/* path, columns: borrowed until parquet_close. n >= 1; names are unique. A column that the file lacks is a user error
 * that lists those of strings. */
Err parquet_open(const char *path, const char *const *columns, int n, Parquet **out);
/* The next row: row[n] in the order of the columns, valid until the next call. *more is false at the end. */
Err parquet_next(Parquet *, ParquetText *row, bool *more);
int64_t parquet_bytes(const Parquet *); /* of the file, read so far; the columns between count as read */
void parquet_close(Parquet *);
