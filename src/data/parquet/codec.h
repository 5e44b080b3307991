/* The compression codecs for Parquet pages (Compression.md in apache/parquet-format), identified by their numbers in
 * parquet.thrift. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PARQUET_UNCOMPRESSED = 0 };

bool parquet_codec_can(int64_t codec); /* whether the codec is supported */
/* Returns the end of an error message about a column with an unsupported codec: "is compressed by LZO; ...". */
const char *parquet_codec_problem(int64_t codec);
/* Decompresses `n` bytes to `out`. Returns whether the result has exactly `size` > 0 bytes. The codec must be
 * supported, and must not be PARQUET_UNCOMPRESSED. */
bool parquet_decompress(int64_t codec, const unsigned char *in, size_t n, unsigned char *out, size_t size);
