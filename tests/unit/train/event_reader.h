/* Reads TensorBoard event files. It was written from the descriptions of the format and shares no code with
 * src/train/events.c: TFRecord (tensorflow/core/lib/io/record_writer.cc), Event and Summary (event.proto,
 * summary.proto), CRC-32C (RFC 3720). */
#pragma once

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "unit/err.h"

#include "base/file.h"
#include "base/mem.h"

/* Computes the remainder of a division by the polynomial 0x1EDC6F41, most significant bit first, where the
 * bits of bytes and of the remainder are reversed. */
static inline uint32_t reader_crc(const void *bytes, size_t n) {
    const unsigned char *p = bytes;
    uint32_t rest = 0xffffffffu, mirrored = 0;
    for (size_t i = 0; i < 8 * n; i++) {
        uint32_t in = p[i / 8] >> i % 8 & 1, top = rest >> 31;
        rest = rest << 1 ^ (in ^ top ? 0x1EDC6F41u : 0);
    }
    for (int i = 0; i < 32; i++) mirrored |= (rest >> i & 1) << (31 - i);
    return ~mirrored;
}

static inline uint32_t reader_unmask(uint32_t masked) {
    uint32_t rotated = masked - 0xa282ead8u;
    return rotated >> 17 | rotated << 15;
}

typedef struct Scalar {
    char tag[64];
    int64_t step;
    float value;
    char text[1000]; /* of an event with a text instead of a number */
} Scalar;

typedef struct EventFile {
    char version[32];
    Scalar *scalars;
    size_t n;
} EventFile;

typedef struct Field {
    unsigned number, wire;
    uint64_t varint;            /* the value if the wire type is 0, or the length if it is 2 */
    const unsigned char *bytes; /* the payload */
    size_t n;
} Field;

static inline uint64_t reader_varint(const unsigned char **p, const unsigned char *end) {
    uint64_t x = 0;
    for (int shift = 0;; shift += 7) {
        assert_true(*p < end && shift < 64);
        unsigned char byte = *(*p)++;
        x |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return x;
    }
}

/* Reads the next field of a message. Returns false at its end. */
static inline bool reader_field(const unsigned char **p, const unsigned char *end, Field *f) {
    if (*p == end) return false;
    uint64_t key = reader_varint(p, end);
    *f = (Field){.number = (unsigned)(key >> 3), .wire = (unsigned)(key & 7)};
    if (f->wire == 0) {
        f->varint = reader_varint(p, end);
        return true;
    }
    f->n = f->wire == 1 ? 8 : f->wire == 5 ? 4 : f->wire == 2 ? (size_t)reader_varint(p, end) : SIZE_MAX;
    assert_true(f->n <= (size_t)(end - *p));
    f->bytes = *p;
    *p += f->n;
    return true;
}

/* Reads the string of a tensor. */
static inline void reader_text(const unsigned char *p, size_t n, char *out, size_t size) {
    Field f;
    for (const unsigned char *end = p + n; reader_field(&p, end, &f);)
        if (f.number == 8) snprintf(out, size, "%.*s", (int)f.n, (const char *)f.bytes);
}

static inline void reader_value(const unsigned char *p, size_t n, Scalar *s) {
    for (const unsigned char *end = p + n; p < end;) {
        Field f;
        assert_true(reader_field(&p, end, &f));
        if (f.number == 1) snprintf(s->tag, sizeof s->tag, "%.*s", (int)f.n, (const char *)f.bytes);
        if (f.number == 2) {
            assert_int_equal(f.wire, 5);
            memcpy(&s->value, f.bytes, 4);
        }
        if (f.number == 8) reader_text(f.bytes, f.n, s->text, sizeof s->text);
    }
}

static inline void reader_event(EventFile *out, const unsigned char *p, size_t n) {
    Scalar s = {.step = 0};
    bool timed = false, scalar = false;
    Field f, inner;
    for (const unsigned char *end = p + n; reader_field(&p, end, &f);) {
        if (f.number == 1) timed = f.wire == 1;
        if (f.number == 2) s.step = (int64_t)f.varint;
        if (f.number == 3)
            snprintf(out->version, sizeof out->version, "%.*s", (int)f.n, (const char *)f.bytes);
        if (f.number != 5) continue;
        const unsigned char *q = f.bytes;
        while (reader_field(&q, f.bytes + f.n, &inner))
            if (inner.number == 1) reader_value(inner.bytes, inner.n, &s), scalar = true;
    }
    assert_true(timed);
    if (!scalar) return;
    out->scalars = mem_grow(out->scalars, out->n + 1, sizeof s);
    out->scalars[out->n++] = s;
}

/* Reads the only event file in a folder. The caller must free `scalars`. */
static inline EventFile reader_read(const char *dir) {
    char path[1024] = "";
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        if (!strncmp(e->d_name, "events.out.tfevents.", 20))
            snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
    closedir(d);
    Str s = {0};
    assert_ok(file_read(path, &s));
    EventFile out = {0};
    for (size_t at = 0; at < s.len;) {
        uint64_t length;
        uint32_t crc;
        assert_true(s.len - at >= 16);
        memcpy(&length, s.s + at, 8);
        memcpy(&crc, s.s + at + 8, 4);
        assert_true(reader_unmask(crc) == reader_crc(s.s + at, 8));
        assert_true(length <= s.len - at - 16);
        memcpy(&crc, s.s + at + 12 + length, 4);
        assert_true(reader_unmask(crc) == reader_crc(s.s + at + 12, length));
        reader_event(&out, (const unsigned char *)s.s + at + 12, length);
        at += 16 + length;
    }
    str_free(&s);
    return out;
}

/* Returns the number of scalars with the tag, and sets *last to the last of them. */
static inline int reader_find(const EventFile *f, const char *tag, Scalar *last) {
    int found = 0;
    for (size_t i = 0; i < f->n; i++)
        if (!strcmp(f->scalars[i].tag, tag)) *last = f->scalars[i], found++;
    return found;
}
