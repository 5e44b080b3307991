#include "server/openapi.h"

#include <math.h>
#include <string.h>

#include "base/version.h"

/* Returns x as JSON, limited to the integers that jansson can read from a body. */
static json_t *limit(double x) {
    return json_integer(x >= 0x1p63 ? INT64_MAX : x < -0x1p63 ? INT64_MIN : (int64_t)x);
}

static json_t *number_schema(const BodyField *f) {
    if (f->kind == KIND_INTEGER)
        return json_pack("{s:[s,s],s:o,s:o}", "type", "integer", "null", "minimum", limit(f->low), "maximum",
                         limit(f->high));
    return json_pack("{s:[s,s],s:f,s:f}", "type", "number", "null",
                     f->kind == KIND_POSITIVE ? "exclusiveMinimum" : "minimum", f->low, "maximum", f->high);
}

/* Returns the schema of the values that a field can have, or NULL if the document omits the field. */
static json_t *field_schema(const BodyField *f) {
    switch (f->kind) {
    case KIND_INTEGER:
    case KIND_NUMBER:
    case KIND_POSITIVE:
        return number_schema(f);
    case KIND_BOOLEAN:
        return json_pack("{s:[s,s]}", "type", "boolean", "null");
    case KIND_STRING:
        return json_pack("{s:[s,s]}", "type", "string", "null");
    case KIND_SPECIAL:
    case KIND_TEXT:
        return json_pack("{s:[o,{s:s}]}", "anyOf", json_loads(f->text, 0, NULL), "type", "null");
    case KIND_ONLY:
        return json_pack("{s:[o,n]}", "enum", json_loads(f->text, JSON_DECODE_ANY, NULL));
    case KIND_IGNORED:
        return json_object();
    case KIND_RENAMED:
        break;
    }
    return NULL;
}

static json_t *body_schema(const ApiPath *p) {
    json_t *fields = json_object();
    for (const BodyField *f = field_next(p->endpoint, NULL); f; f = field_next(p->endpoint, f)) {
        const bool required = p->required && !strcmp(p->required, f->name); /* null is not allowed */
        json_t *schema = required ? json_loads(f->text, 0, NULL) : field_schema(f);
        if (schema) json_object_set_new(fields, f->name, schema);
    }
    json_t *body =
        json_pack("{s:s,s:b,s:o}", "type", "object", "additionalProperties", 0, "properties", fields);
    if (p->required) json_object_set_new(body, "required", json_pack("[s]", p->required));
    return body;
}

static const struct {
    const char *name, *schema;
} SCHEMAS[] = {
#define SCHEMA(name, ...) {#name, #__VA_ARGS__},
#include "server/answers.def"
};

static const struct {
    const char *status, *about, *header;
} REFUSALS[] = {
    {"400", "The request is not valid.", NULL},
    {"401", "The request does not have the server's key.", "WWW-Authenticate"},
    {"404", "The server has another model.", NULL},
    {"408", "The body is not complete.", NULL},
    {"409", "The engine's state does not allow the request.", NULL},
    {"413", "The body is too long.", NULL},
    {"415", "The body is compressed.", NULL},
    {"429", "Too many requests are waiting.", "Retry-After"},
    {"500", "The server has failed.", NULL},
    {"503", "The server is shutting down.", NULL},
    {"504", "The request takes too long.", NULL},
};

static bool generates(const ApiPath *p) { return p->has_body && p->endpoint <= ENDPOINT_MEGATRON; }

static json_t *response(const char *about, const char *type, json_t *schema, const char *header) {
    json_t *json = json_pack("{s:s,s:{s:{s:o}}}", "description", about, "content", type, "schema", schema);
    if (header)
        json_object_set_new(
            json, "headers",
            json_pack("{s:{s:b,s:{s:s}}}", header, "required", 1, "schema", "type", "string"));
    return json;
}

static json_t *schema_ref(const char *name) {
    return json_pack("{s:o}", "$ref", json_sprintf("#/components/schemas/%s", name));
}

static bool is_one(const char *statuses, const char *status) { return statuses && strstr(statuses, status); }

/* Returns the schema of a path's answers with the given status, or NULL if there is none. Any request can have a body,
 * even if the path does not read it. */
static const char *schema_of(const ApiPath *p, const char *status) {
    if (is_one(p->also, status)) return p->answer;
    if (!is_one("400 408 413 415", status) && !is_one(p->refused, status) &&
        (p->open || strcmp(status, "401")))
        return NULL;
    return p->refusal ? p->refusal : "error";
}

static json_t *responses(const ApiPath *p) {
    json_t *schema = p->answer ? schema_ref(p->answer) : json_pack("{s:s}", "type", "string"),
           *answer = response("The answer.", p->type ? p->type : "application/json", schema,
                              generates(p) ? "X-Request-Id" : NULL),
           *all = json_pack("{s:o}", "200", answer);
    if (generates(p) && p->endpoint != ENDPOINT_MEGATRON)
        json_object_set_new(json_object_get(answer, "content"), "text/event-stream", json_object());
    for (size_t i = 0; i < sizeof REFUSALS / sizeof *REFUSALS; i++) {
        const char *name = schema_of(p, REFUSALS[i].status);
        if (name)
            json_object_set_new(
                all, REFUSALS[i].status,
                response(REFUSALS[i].about, "application/json", schema_ref(name), REFUSALS[i].header));
    }
    return all;
}

json_t *openapi_path(const ApiPath *p) {
    json_t *call = json_pack("{s:s,s:o}", "summary", p->summary, "responses", responses(p));
    if (strchr(p->path, '{'))
        json_object_set_new(call, "parameters",
                            json_pack("[{s:s,s:s,s:b,s:o}]", "name", "model", "in", "path", "required", 1,
                                      "schema", schema_ref("model")));
    if (p->has_body)
        json_object_set_new(call, "requestBody",
                            json_pack("{s:b,s:{s:{s:o}}}", "required", 1, "content", "application/json",
                                      "schema", body_schema(p)));
    if (!p->open) json_object_set_new(call, "security", json_pack("[{s:[]}]", "key"));
    char method[8] = "";
    for (size_t i = 0; p->method[i] && i + 1 < sizeof method; i++)
        method[i] = (char)(p->method[i] - 'A' + 'a'); /* in OpenAPI, methods are in lower case */
    return json_pack("{s:o}", method, call);
}

json_t *openapi_document(json_t *paths, const char *model, int64_t vocab) {
    json_t *schemas = json_object();
    for (size_t i = 0; i < sizeof SCHEMAS / sizeof *SCHEMAS; i++)
        json_object_set_new(schemas, SCHEMAS[i].name, json_loads(SCHEMAS[i].schema, 0, NULL));
    json_object_set_new(json_object_get(schemas, "token"), "maximum", json_integer(vocab - 1));
    json_object_set_new(json_object_get(schemas, "model"), "const", json_string(model));
    return json_pack("{s:s,s:{s:s,s:s},s:o,s:{s:o,s:{s:{s:s,s:s}}}}", "openapi", "3.1.0", "info", "title",
                     "isotron serve", "version", isotron_version(), "paths", paths, "components", "schemas",
                     schemas, "securitySchemes", "key", "type", "http", "scheme", "bearer");
}
