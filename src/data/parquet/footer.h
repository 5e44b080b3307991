/* The footer of a Parquet file: where the pages of the wanted columns are (parquet.thrift, FileMetaData). */
#pragma once

#include "base/file.h"
#include "data/parquet/codec.h"

/* The pages of one column in one row group. */
typedef struct ParquetChunk {
    int64_t begin, size; /* in the file */
    int64_t rows;
    int64_t codec; /* one that parquet_decompress has */
} ParquetChunk;

typedef struct ParquetFooter {
    int64_t groups;
    ParquetChunk *chunks; /* owned: [groups][columns]; those of a group have the same number of rows */
    bool *optional;       /* owned: [columns], whether a row may lack the value */
} ParquetFooter;

/* A user error if the file is damaged or a column cannot be read. `out` is freed by the caller, also after an
 * error. */
Err parquet_footer_read(const char *path, const FileMap *, const char *const *columns, int n,
                        ParquetFooter *out);
void parquet_footer_free(ParquetFooter *);
