#include "server/fields.h"

#include <math.h>
#include <string.h>

#include "base/str.h"

enum {
    C = 1 << ENDPOINT_COMPLETIONS,
    M = 1 << ENDPOINT_CHAT,
    A = 1 << ENDPOINT_MEGATRON,
    T = 1 << ENDPOINT_TOKENIZE,
    D = 1 << ENDPOINT_DETOKENIZE,
    W = 1 << ENDPOINT_WEIGHTS
};

static const BodyField FIELDS_OF_BODIES[] = {
#define INTEGER(name, endpoints, low, high) {name, KIND_INTEGER, endpoints, low, high, NULL},
#define NUMBER(name, endpoints, low, high)  {name, KIND_NUMBER, endpoints, low, high, NULL},
#define POSITIVE(name, endpoints, high)     {name, KIND_POSITIVE, endpoints, 0, high, NULL},
#define BOOLEAN(name, endpoints)            {name, KIND_BOOLEAN, endpoints, 0, 0, NULL},
#define STRING(name, endpoints)             {name, KIND_STRING, endpoints, 0, 0, NULL},
#define SPECIAL(name, endpoints, ...)       {name, KIND_SPECIAL, endpoints, 0, 0, #__VA_ARGS__},
#define TEXT(name, endpoints, ...)          {name, KIND_TEXT, endpoints, 0, 0, #__VA_ARGS__},
#define IGNORED(name, endpoints)            {name, KIND_IGNORED, endpoints, 0, 0, NULL},
#define ONLY(name, endpoints, ...)          {name, KIND_ONLY, endpoints, 0, 0, #__VA_ARGS__},
#define RENAMED(name, endpoints, other)     {name, KIND_RENAMED, endpoints, 0, 0, other},
#include "server/fields.def"
};
enum { N_FIELDS = sizeof FIELDS_OF_BODIES / sizeof *FIELDS_OF_BODIES };

const BodyField *field_next(Endpoint endpoint, const BodyField *last) {
    for (const BodyField *f = last ? last + 1 : FIELDS_OF_BODIES; f < FIELDS_OF_BODIES + N_FIELDS; f++)
        if (f->endpoints & 1u << endpoint) return f;
    return NULL;
}

Refusal field_wrong(const char *field, const char *expected) {
    return refuse(400, field, NULL, "'%s' must be %s", field, expected);
}

static Refusal check_only(const BodyField *f, const json_t *value) {
    json_t *only = json_loads(f->text, JSON_DECODE_ANY, NULL);
    const bool same = json_is_number(only)
                          ? json_is_number(value) && json_number_value(value) == json_number_value(only)
                          : json_equal(only, value);
    json_decref(only);
    if (same) return SERVED;
    return refuse(400, f->name, "unsupported", "'%s' is not supported by this server: remove it%s%s", f->name,
                  strcmp(f->text, "null") ? ", or set it to " : "", strcmp(f->text, "null") ? f->text : "");
}

static Refusal check_number(const BodyField *f, const json_t *value) {
    const double x = json_number_value(value);
    const char *kind = f->kind == KIND_INTEGER ? "an integer" : "a number";
    if (f->kind == KIND_INTEGER ? field_whole(value, &(int64_t){0}) : json_is_number(value))
        if (x <= f->high && (f->kind == KIND_POSITIVE ? x > f->low : x >= f->low)) return SERVED;
    if (f->kind == KIND_POSITIVE)
        return refuse(400, f->name, NULL, "'%s' must be %s above %.10g, and at most %.10g", f->name, kind,
                      f->low, f->high);
    if (!isfinite(f->low)) return field_wrong(f->name, kind);
    return refuse(400, f->name, NULL, "'%s' must be %s from %.10g to %.10g", f->name, kind, f->low, f->high);
}

/* Returns whether a text in the value contains a zero byte. Keys cannot contain a zero byte (jansson). */
static bool has_zero(const json_t *value) {
    const char *key;
    json_t *one;
    size_t i;
    if (json_is_string(value)) return strlen(json_string_value(value)) != json_string_length(value);
    json_array_foreach((json_t *)value, i, one) if (has_zero(one)) return true;
    json_object_foreach((json_t *)value, key, one) if (has_zero(one)) return true;
    return false;
}

static Refusal check_field(const BodyField *f, const json_t *value) {
    if (f->kind != KIND_TEXT && f->kind != KIND_IGNORED && has_zero(value))
        return refuse(400, f->name, NULL, "'%s' must not contain \\u0000", f->name);
    switch (f->kind) {
    case KIND_INTEGER:
    case KIND_NUMBER:
    case KIND_POSITIVE:
        return check_number(f, value);
    case KIND_BOOLEAN:
        return json_is_boolean(value) ? SERVED : field_wrong(f->name, "true or false");
    case KIND_STRING:
        return json_is_string(value) ? SERVED : field_wrong(f->name, "a string");
    case KIND_ONLY:
        return check_only(f, value);
    case KIND_RENAMED:
        return refuse(400, f->name, "unsupported", "'%s' is no longer used: replace it with '%s'", f->name,
                      f->text);
    case KIND_SPECIAL:
    case KIND_TEXT:
    case KIND_IGNORED:
        break;
    }
    return SERVED;
}

static const BodyField *find_field(Endpoint endpoint, const char *name) {
    const BodyField *f = field_next(endpoint, NULL);
    while (f && strcmp(f->name, name)) f = field_next(endpoint, f);
    return f;
}

Refusal fields_parse(Endpoint endpoint, const char *body, size_t n, json_t **out) {
    json_error_t error;
    const char *name;
    json_t *value;
    *out = json_loadb(body, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (!*out)
        return refuse(400, NULL, NULL, "cannot read the body as JSON: line %d, column %d: %s", error.line,
                      error.column, error.text);
    if (!json_is_object(*out)) return refuse(400, NULL, NULL, "the body must be a JSON object");
    json_object_foreach(*out, name, value) {
        const BodyField *field = find_field(endpoint, name);
        if (!field)
            return refuse(400, name, "unknown_field", "the server does not know the field %s: remove it",
                          quote(name).s);
        if (!json_is_null(value)) REFUSE_UNLESS_SERVED(check_field(field, value));
    }
    return SERVED;
}

bool field_whole(const json_t *value, int64_t *out) {
    const double x = json_number_value(value);
    const bool whole = json_is_real(value) && x == floor(x) && x >= -0x1p63 && x < 0x1p63;
    if (whole || json_is_integer(value)) *out = whole ? (int64_t)x : json_integer_value(value);
    return whole || json_is_integer(value);
}

int64_t field_integer(const json_t *body, const char *field, int64_t fallback) {
    int64_t value;
    return field_whole(json_object_get(body, field), &value) ? value : fallback;
}

double field_number(const json_t *body, const char *field, double fallback) {
    const json_t *value = json_object_get(body, field);
    return json_is_number(value) ? json_number_value(value) : fallback;
}

bool field_truth(const json_t *body, const char *field) { return json_is_true(json_object_get(body, field)); }
