/* A Parquet file's footer, which locates the pages of the requested columns (parquet.thrift,
 * FileMetaData). */
#pragma once

#include "base/file.h"
#include "data/parquet/codec.h"

/* The pages of one column in one row group. */
typedef struct ParquetChunk {
    int64_t begin, size; /* range of bytes in the file */
    int64_t rows;
    int64_t codec; /* a supported codec */
} ParquetChunk;

typedef struct ParquetFooter {
    int64_t groups;
    ParquetChunk *chunks; /* owned: [groups][columns]; all chunks in a group have the same number of rows */
    bool *optional;       /* owned: [columns], whether the value can be missing in a row */
} ParquetFooter;

/* Reads the footer. Returns a user error if the file is damaged or a column cannot be read. The caller must free
 * `out`, even after an error. */
Err parquet_footer_read(const char *path, const FileMap *, const char *const *columns, int n,
                        ParquetFooter *out);
void parquet_footer_free(ParquetFooter *);
