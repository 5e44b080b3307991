/* Reads a message of Protocol Buffers field by field, without a schema. Source: protobuf.dev, Encoding. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct Message {
    const char *at;
    size_t n;
    bool damaged; /* set by message_next */
} Message;

typedef enum WireType { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 } WireType;

typedef struct Field {
    uint32_t number;
    WireType type;
    uint64_t value;    /* except WIRE_BYTES */
    const char *bytes; /* WIRE_BYTES, borrowed from the message */
    size_t n;
} Field;

/* False at the end of the message, or if it is damaged. */
bool message_next(Message *, Field *);
float field_float(const Field *); /* of WIRE_32 */
