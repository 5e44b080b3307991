#include "data/parquet/codec.h"

#include <brotli/decode.h>
#include <limits.h>
#include <lz4.h>
#include <snappy-c.h>
#include <zlib.h>
#include <zstd.h>

/* The values of CompressionCodec in parquet.thrift. */
enum { SNAPPY = 1, GZIP, LZO, BROTLI, LZ4, ZSTD, LZ4_RAW };

bool parquet_codec_can(int64_t codec) {
    return codec >= 0 && codec <= LZ4_RAW && codec != LZO && codec != LZ4;
}

const char *parquet_codec_problem(int64_t codec) {
    return codec == LZO   ? "is compressed by LZO; write it with ZSTD"
           : codec == LZ4 ? "is compressed by LZ4 in Hadoop's framing; write it with LZ4_RAW or ZSTD"
                          : "is compressed by an unknown codec; write it with ZSTD";
}

/* Decompresses one or more gzip members. */
static bool gunzip(const unsigned char *in, size_t n, unsigned char *out, size_t size) {
    z_stream z = {.next_in = (unsigned char *)in, .avail_in = (unsigned)n};
    z.next_out = out, z.avail_out = (unsigned)size;
    if (inflateInit2(&z, MAX_WBITS + 16) != Z_OK) return false;
    int status = Z_STREAM_END;
    while (z.avail_in && status == Z_STREAM_END) {
        inflateReset(&z);
        status = inflate(&z, Z_FINISH);
    }
    inflateEnd(&z);
    return status == Z_STREAM_END && !z.avail_out;
}

bool parquet_decompress(int64_t codec, const unsigned char *in, size_t n, unsigned char *out, size_t size) {
    size_t made = size;
    if (n > INT_MAX || size > INT_MAX) return false; /* zlib and LZ4 represent sizes as int */
    switch (codec) {
    case SNAPPY:
        return snappy_uncompress((const char *)in, n, (char *)out, &made) == SNAPPY_OK && made == size;
    case GZIP:
        return gunzip(in, n, out, size);
    case BROTLI:
        return BrotliDecoderDecompress(n, in, &made, out) == BROTLI_DECODER_RESULT_SUCCESS && made == size;
    case ZSTD:
        return ZSTD_decompress(out, size, in, n) == size;
    case LZ4_RAW:
        return LZ4_decompress_safe((const char *)in, (char *)out, (int)n, (int)size) == (int)size;
    default:
        return false;
    }
}
