/* Reads a Protocol Buffers message field by field, without a schema. Source: the page "Encoding" of protobuf.dev. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct Message {
    const char *at;
    size_t n;
    bool damaged; /* set by message_next if the message is damaged */
} Message;

typedef enum WireType { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 } WireType;

typedef struct Field {
    uint32_t number;
    WireType type;
    uint64_t value;    /* the value, for all types except WIRE_BYTES */
    const char *bytes; /* the bytes of WIRE_BYTES, borrowed from the message */
    size_t n;
} Field;

/* Reads the next field; returns false at the end of the message, or if the message is damaged. */
bool message_next(Message *, Field *);
float field_float(const Field *); /* the value of a WIRE_32 field */
