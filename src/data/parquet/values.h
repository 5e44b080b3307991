/* The values in a Parquet page (Encodings.md of apache/parquet-format): runs of small integers, and strings in the
 * encodings PLAIN, PLAIN_DICTIONARY, RLE_DICTIONARY, DELTA_LENGTH_BYTE_ARRAY and DELTA_BYTE_ARRAY. Values are decoded
 * one by one, so a page needs no memory besides its bytes. The bytes are untrusted and borrowed until the last value is
 * read. */
#pragma once

#include <stddef.h>

#include "base/str.h"
#include "data/parquet/parquet.h"
#include "data/parquet/thrift.h"

/* A reader for levels and dictionary indices, which have the RLE/bit-packing hybrid encoding. The initial
 * value is {.in, .width} with width <= 32. */
typedef struct Runs {
    Bytes in;
    unsigned width;            /* number of bits per value */
    uint64_t left;             /* number of unread values in the run */
    const unsigned char *bits; /* the bytes of a bit-packed run, or NULL if all values are `value` */
    uint64_t bit;              /* position of the next value in `bits` */
    uint32_t value;
} Runs;

bool runs_next(Runs *, uint32_t *out); /* returns false if no value is left, or if the run is damaged */

/* A reader for DELTA_BINARY_PACKED 32-bit integers. */
typedef struct Deltas {
    Bytes in;       /* bytes after the current miniblock */
    uint64_t left;  /* number of unread values */
    uint64_t size;  /* number of values per miniblock, a multiple of 8 */
    uint64_t count; /* number of miniblocks per block */
    uint64_t mini;  /* number of unread miniblocks in the block */
    uint64_t rest;  /* number of unread values in the miniblock */
    const unsigned char *widths, *bits;
    uint64_t bit;
    unsigned width;
    uint32_t value, least; /* value: the next value; least: the minimum delta of the block */
} Deltas;

/* The strings in the pages of a column chunk. The initial value is {0}. */
typedef struct Strings {
    int64_t encoding;
    Bytes data;
    Runs indices;
    Deltas prefixes, lengths;
    Str previous;            /* owned: the last DELTA_BYTE_ARRAY string */
    ParquetText *dictionary; /* owned; NULL if the chunk has no dictionary */
    size_t dictionary_size;
} Strings;

/* strings_dictionary and strings_open return a description of the problem, or NULL if there is none. The dictionary has
 * n strings encoded as PLAIN. */
const char *strings_dictionary(Strings *, Bytes page, int64_t encoding, int64_t n);
const char *strings_open(Strings *, Bytes page, int64_t encoding);
/* Reads the next string, which is valid until the next call. Returns false if no string is left, or if the
 * next string is damaged. */
bool strings_next(Strings *, ParquetText *out);
void strings_free(Strings *); /* frees the strings, and resets the value to {0} */
