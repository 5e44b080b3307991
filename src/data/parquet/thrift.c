#include "data/parquet/thrift.h"

#include <stddef.h>

enum { MAX_DEPTH = 32 };

void bytes_fail(Bytes *b) { b->bad = true, b->at = b->end; }

bool bytes_take(Bytes *b, uint64_t n, const unsigned char **out) {
    *out = b->at;
    if (n > (uint64_t)(b->end - b->at)) bytes_fail(b);
    if (b->bad) return false;
    b->at += n;
    return true;
}

uint64_t bytes_little(Bytes *b, unsigned n) {
    const unsigned char *p;
    uint64_t value = 0;
    if (!bytes_take(b, n, &p)) return 0;
    for (unsigned i = 0; i < n; i++) value |= (uint64_t)p[i] << 8 * i;
    return value;
}

uint64_t bytes_varint(Bytes *b) {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && b->at < b->end; shift += 7) {
        const unsigned char byte = *b->at++;
        value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return value;
    }
    bytes_fail(b);
    return 0;
}

int64_t bytes_zigzag(Bytes *b) {
    const uint64_t v = bytes_varint(b);
    return (int64_t)(v >> 1 ^ (0 - (v & 1)));
}

bool thrift_next(Bytes *b, ThriftField *f) {
    const unsigned head = (unsigned)bytes_little(b, 1), step = head >> 4;
    f->type = head & 15;
    if (f->type == THRIFT_STOP) return false; /* after an error, the type is also THRIFT_STOP */
    f->id = (int16_t)(step ? f->id + step : bytes_zigzag(b));
    return !b->bad;
}

int64_t thrift_int(Bytes *b, ThriftField f) {
    switch (f.type) {
    case THRIFT_TRUE:
    case THRIFT_FALSE:
        return f.type == THRIFT_TRUE;
    case THRIFT_I8:
        return (int8_t)bytes_little(b, 1);
    case THRIFT_I16:
    case THRIFT_I32:
    case THRIFT_I64:
        return bytes_zigzag(b);
    default:
        bytes_fail(b);
        return 0;
    }
}

Bytes thrift_binary(Bytes *b, ThriftField f) {
    const unsigned char *p = b->at;
    const uint64_t n = f.type == THRIFT_BINARY ? bytes_varint(b) : 0;
    if (f.type != THRIFT_BINARY) bytes_fail(b);
    return bytes_take(b, n, &p) ? (Bytes){p, p + n, false} : (Bytes){p, p, true};
}

void thrift_struct(Bytes *b, ThriftField f) {
    if (f.type != THRIFT_STRUCT) bytes_fail(b);
}

/* Reads the header of a list. A list cannot have more elements than there are bytes left, because each element needs at
 * least one byte. */
static uint64_t list_head(Bytes *b, unsigned *type) {
    const unsigned head = (unsigned)bytes_little(b, 1);
    const uint64_t n = head >> 4 == 15 ? bytes_varint(b) : head >> 4;
    *type = head & 15;
    if (n > (uint64_t)(b->end - b->at)) bytes_fail(b);
    return b->bad ? 0 : n;
}

uint64_t thrift_structs(Bytes *b, ThriftField f) {
    unsigned type = THRIFT_STRUCT;
    if (f.type != THRIFT_LIST) bytes_fail(b);
    const uint64_t n = list_head(b, &type);
    if (n && type != THRIFT_STRUCT) bytes_fail(b);
    return b->bad ? 0 : n;
}

static void skip(Bytes *b, unsigned type, int depth);

static void skip_map(Bytes *b, int depth) {
    const uint64_t n = bytes_varint(b);
    const unsigned types = n ? (unsigned)bytes_little(b, 1) : 0;
    for (uint64_t i = 0; i < n && !b->bad; i++) {
        skip(b, types >> 4, depth);
        skip(b, types & 15, depth);
    }
}

/* Skips an element of a list. A boolean element takes one byte, unlike a boolean field. */
static void skip(Bytes *b, unsigned type, int depth) {
    const unsigned char *p;
    unsigned element;
    if (depth == MAX_DEPTH) bytes_fail(b);
    switch (type) {
    case THRIFT_TRUE:
    case THRIFT_FALSE:
    case THRIFT_I8:
        bytes_take(b, 1, &p);
        break;
    case THRIFT_I16:
    case THRIFT_I32:
    case THRIFT_I64:
        bytes_varint(b);
        break;
    case THRIFT_DOUBLE:
        bytes_take(b, 8, &p);
        break;
    case THRIFT_BINARY:
        bytes_take(b, bytes_varint(b), &p);
        break;
    case THRIFT_LIST:
    case THRIFT_SET:
        for (uint64_t n = list_head(b, &element); n && !b->bad; n--) skip(b, element, depth + 1);
        break;
    case THRIFT_MAP:
        skip_map(b, depth + 1);
        break;
    case THRIFT_STRUCT:
        for (ThriftField f = {0}; thrift_next(b, &f);)
            if (f.type != THRIFT_TRUE && f.type != THRIFT_FALSE) skip(b, f.type, depth + 1);
        break;
    default:
        bytes_fail(b);
    }
}

void thrift_skip(Bytes *b, ThriftField f) {
    if (f.type != THRIFT_TRUE && f.type != THRIFT_FALSE) skip(b, f.type, 0);
}
