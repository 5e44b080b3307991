#include "tokenizer/file/protobuf.h"

#include <string.h>

static bool varint(Message *m, uint64_t *out) {
    *out = 0;
    for (int shift = 0; shift < 64 && m->n; shift += 7) {
        const unsigned char byte = (unsigned char)*m->at;
        m->at++, m->n--;
        *out |= (uint64_t)(byte & 0x7F) << shift;
        if (!(byte & 0x80)) return true;
    }
    return false;
}

static bool fixed(Message *m, size_t bytes, uint64_t *out) {
    if (m->n < bytes) return false;
    *out = 0;
    for (size_t i = 0; i < bytes; i++) *out |= (uint64_t)(unsigned char)m->at[i] << 8 * i;
    m->at += bytes, m->n -= bytes;
    return true;
}

static bool read_field(Message *m, Field *f) {
    uint64_t key, length;
    if (!varint(m, &key) || key >> 3 == 0 || key >> 3 > UINT32_MAX) return false;
    f->number = (uint32_t)(key >> 3);
    f->type = (WireType)(key & 7);
    if (f->type == WIRE_VARINT) return varint(m, &f->value);
    if (f->type == WIRE_64) return fixed(m, 8, &f->value);
    if (f->type == WIRE_32) return fixed(m, 4, &f->value);
    if (f->type != WIRE_BYTES || !varint(m, &length) || length > m->n) return false;
    f->bytes = m->at, f->n = (size_t)length;
    m->at += f->n, m->n -= f->n;
    return true;
}

bool message_next(Message *m, Field *f) {
    if (m->damaged || !m->n) return false;
    m->damaged = !read_field(m, f);
    return !m->damaged;
}

float field_float(const Field *f) {
    const uint32_t bits = (uint32_t)f->value;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
