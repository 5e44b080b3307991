/* Reads structs in Apache Thrift's compact protocol from untrusted bytes (thrift-compact-protocol.md of Apache Thrift).
 * A reader loops over a struct's fields:
 *
 *     for (ThriftField f = {0}; thrift_next(&b, &f);)
 *         if (f.id == 3) rows = thrift_int(&b, f);
 *         else thrift_skip(&b, f);
 *
 * An error sets `bad` and skips all remaining bytes, so that every such loop ends. The caller checks `bad`
 * after the loop. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* The unread bytes of the input (borrowed). */
typedef struct Bytes {
    const unsigned char *at, *end;
    bool bad;
} Bytes;

void bytes_fail(Bytes *);
/* Removes the next n bytes from the input. Returns false if fewer bytes remain. */
bool bytes_take(Bytes *, uint64_t n, const unsigned char **out);
uint64_t bytes_little(Bytes *, unsigned n); /* reads a little-endian integer of n <= 8 bytes */
uint64_t bytes_varint(Bytes *);             /* reads a ULEB128 integer of at most 64 bits */
int64_t bytes_zigzag(Bytes *); /* reads a varint whose values 0, 1, 2, 3, ... mean 0, -1, 1, -2, ... */

typedef enum ThriftType {
    THRIFT_STOP,
    THRIFT_TRUE,
    THRIFT_FALSE,
    THRIFT_I8,
    THRIFT_I16,
    THRIFT_I32,
    THRIFT_I64,
    THRIFT_DOUBLE,
    THRIFT_BINARY,
    THRIFT_LIST,
    THRIFT_SET,
    THRIFT_MAP,
    THRIFT_STRUCT
} ThriftType;

typedef struct ThriftField {
    int16_t id;
    unsigned type; /* a ThriftType or an unknown number */
} ThriftField;

/* Reads the next field of a struct. The caller must initialize the field to {0} before the first call.
 * Returns false at the end of the struct. */
bool thrift_next(Bytes *, ThriftField *);
/* Each of the following functions reads a field's value. A field whose type the function does not support is
 * an error. */
int64_t thrift_int(Bytes *, ThriftField); /* a boolean is 0 or 1 */
Bytes thrift_binary(Bytes *, ThriftField);
void thrift_struct(Bytes *, ThriftField); /* starts reading the fields of a nested struct */
/* Returns how many structs follow, which is at most the number of remaining bytes. */
uint64_t thrift_structs(Bytes *, ThriftField);
void thrift_skip(Bytes *, ThriftField);
