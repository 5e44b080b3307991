/* Reads files as streams of uncompressed bytes. A file is plain or compressed by gzip (RFC 1952), Zstandard
 * (RFC 8878), bzip2, xz, lzma or lzip, as its first bytes indicate. The path "-" means standard input. A file
 * may consist of several compressed parts. The decompression window or dictionary must be at most 2 GiB.
 * Support for bzip2 and xz depends on the build. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

typedef struct Unpack Unpack;

bool unpack_is_stdin(const char *path);
/* Opens a file. The path is borrowed. Returns a user error if the path is a folder or cannot be opened. */
Err unpack_open(const char *path, Unpack **out);
/* Returns whether the file is a Parquet file. A Parquet file cannot be read as a stream, because its index is at the
 * end. */
bool unpack_is_parquet(const Unpack *);
bool unpack_is_pipe(const Unpack *);
/* Reads up to `n` bytes, and sets *got to the number of bytes read, which is 0 only at the end of the file.
 * Returns an error if the data is damaged or truncated, or if reading fails. */
Err unpack_read(Unpack *, void *out, size_t n, size_t *got);
int64_t unpack_bytes(const Unpack *); /* how many bytes of the file have been read */
void unpack_close(Unpack *);
