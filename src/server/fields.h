/* The fields of request bodies: the table of fields (fields.def), checks, and functions that read fields. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "server/refusal.h"

typedef enum Endpoint {
    ENDPOINT_COMPLETIONS,
    ENDPOINT_CHAT,
    ENDPOINT_MEGATRON,
    ENDPOINT_TOKENIZE,
    ENDPOINT_DETOKENIZE,
    ENDPOINT_WEIGHTS
} Endpoint;

typedef enum FieldKind {
    KIND_INTEGER,
    KIND_NUMBER,
    KIND_POSITIVE,
    KIND_BOOLEAN,
    KIND_STRING,
    KIND_SPECIAL,
    KIND_TEXT,
    KIND_IGNORED,
    KIND_ONLY,
    KIND_RENAMED,
} FieldKind;

typedef struct BodyField {
    const char *name;
    FieldKind kind;
    unsigned endpoints; /* a bit for each Endpoint */
    double low, high;
    const char *text; /* SPECIAL, TEXT: the JSON schema; ONLY: the value as JSON; RENAMED: the other field */
} BodyField;

/* Returns the endpoint's field that follows `last`, or its first field if `last` is NULL. Returns NULL after the last
 * field. */
const BodyField *field_next(Endpoint, const BodyField *last);
/* Parses a body. The body must be an object that contains only the endpoint's fields, each with a valid type and value.
 * The caller must release *out, even after a refusal. */
Refusal fields_parse(Endpoint, const char *body, size_t n, json_t **out);
Refusal field_wrong(const char *field, const char *expected);
/* If a value is an integer, sets *out and returns true. As in JSON Schema, 2.0 is an integer. */
bool field_whole(const json_t *value, int64_t *out);
/* Returns the value of a field, or the fallback if the body does not have the field. */
int64_t field_integer(const json_t *body, const char *field, int64_t fallback);
double field_number(const json_t *body, const char *field, double fallback);
bool field_truth(const json_t *body, const char *field);
