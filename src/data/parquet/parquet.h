/* Reads string columns from a Parquet file row by row (apache/parquet-format: README.md, parquet.thrift, Encodings.md,
 * Compression.md).
 *
 * The reader supports top-level columns of type BYTE_ARRAY, required or optional, and data pages of both
 * versions. It also supports dictionaries, the encodings of data/parquet/values.h, and the codecs SNAPPY, GZIP, BROTLI,
 * ZSTD and LZ4_RAW. The file may also contain columns of any other kind. Requesting a column is a user error if the
 * column contains lists, maps or structs, uses LZO or the older LZ4, is encrypted, or stores its data in other files.
 *
 * The file is mapped. The reader needs memory for the locations of the requested columns in each row group, and for a
 * page and a dictionary of each requested column. A page may be at most 1 GiB in size. A page of more than 64 MiB may
 * be at most 32768 times as large as its compressed form. The file is untrusted; a damaged file is a user error. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

typedef struct Parquet Parquet;

typedef struct ParquetText {
    const char *bytes; /* any bytes, not NUL-terminated; NULL if the row has no value */
    size_t n;
} ParquetText;

/* path and columns are borrowed until parquet_close. n >= 1, and the names are unique. A missing column is a user error
 * whose message lists the string columns. */
Err parquet_open(const char *path, const char *const *columns, int n, Parquet **out);
/* Reads the next row into row[n], in column order. The row is valid until the next call. At the end of the file, sets
 * *more to false. */
Err parquet_next(Parquet *, ParquetText *row, bool *more);
int64_t parquet_bytes(const Parquet *); /* how many bytes of the file have been read or skipped */
void parquet_close(Parquet *);
