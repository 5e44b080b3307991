/* The values of a page of a Parquet file (Encodings.md of apache/parquet-format): runs of small integers, and
 * strings in the encodings PLAIN, PLAIN_DICTIONARY, RLE_DICTIONARY, DELTA_LENGTH_BYTE_ARRAY and
 * DELTA_BYTE_ARRAY. Values are decoded one by one, so that a page needs only the memory of its bytes, which
 * are untrusted, borrowed, and must stay until the last value is read. */
#pragma once

#include <stddef.h>

#include "base/str.h"
#include "data/parquet/parquet.h"
#include "data/parquet/thrift.h"

/* RLE/bit-packing hybrid: levels and indices of a dictionary. Starts as {.in, .width}; width <= 32. */
typedef struct Runs {
    Bytes in;
    unsigned width;            /* bits */
    uint64_t left;             /* values of the run */
    const unsigned char *bits; /* of a bit-packed run; NULL: one value repeats */
    uint64_t bit;              /* of the next value */
    uint32_t value;
} Runs;

bool runs_next(Runs *, uint32_t *out); /* false: there is none, or the run is damaged */

/* DELTA_BINARY_PACKED of 32-bit integers. */
typedef struct Deltas {
    Bytes in;       /* after the current miniblock */
    uint64_t left;  /* values that are not read yet */
    uint64_t size;  /* values of a miniblock, a multiple of 8 */
    uint64_t count; /* miniblocks of a block */
    uint64_t mini;  /* miniblocks of the block that are not read yet */
    uint64_t rest;  /* values of the miniblock that are not read yet */
    const unsigned char *widths, *bits;
    uint64_t bit;
    unsigned width;
    uint32_t value, least; /* the next value; the least delta of the block */
} Deltas;

/* The strings of the pages of a column chunk. Starts as {0}. */
typedef struct Strings {
    int64_t encoding;
    Bytes data;
    Runs indices;
    Deltas prefixes, lengths;
    Str previous;            /* owned: the last string of DELTA_BYTE_ARRAY */
    ParquetText *dictionary; /* owned; NULL: the chunk has none */
    size_t dictionary_size;
} Strings;

/* Each returns NULL, or what is wrong. The dictionary has n strings in encoding PLAIN. */
const char *strings_dictionary(Strings *, Bytes page, int64_t encoding, int64_t n);
const char *strings_open(Strings *, Bytes page, int64_t encoding);
/* The next string, valid until the next call; false: there is none, or it is damaged. */
bool strings_next(Strings *, ParquetText *out);
void strings_free(Strings *); /* starts again as {0} */
