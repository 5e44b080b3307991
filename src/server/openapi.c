#include "server/openapi.h"

#include <math.h>
#include <string.h>

#include "base/version.h"

static json_t *number_schema(const BodyField *f) {
    json_t *schema = json_pack("{s:[s,s]}", "type", f->kind == KIND_INTEGER ? "integer" : "number", "null");
    if (isfinite(f->low))
        json_object_set_new(schema, f->kind == KIND_POSITIVE ? "exclusiveMinimum" : "minimum",
                            json_real(f->low));
    if (isfinite(f->high)) json_object_set_new(schema, "maximum", json_real(f->high));
    return schema;
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

static json_t *content(const char *type, json_t *schema) {
    return json_pack("{s:{s:o}}", type, "schema", schema);
}

json_t *openapi_path(const ApiPath *p) {
    const bool json = !p->type;
    json_t *answer = content(json ? "application/json" : p->type,
                             json_pack("{s:s}", "type", json ? "object" : "string")),
           *call = json_pack("{s:s,s:{s:{s:s,s:o},s:{s:s,s:o}}}", "summary", p->summary, "responses", "200",
                             "description", "the answer", "content", answer, "default", "description",
                             "the reason for any other status", "content",
                             content("application/json", json_pack("{s:s}", "type", "object")));
    if (p->has_body && (p->endpoint == ENDPOINT_COMPLETIONS || p->endpoint == ENDPOINT_CHAT))
        json_object_set_new(answer, "text/event-stream", json_object());
    if (p->has_body)
        json_object_set_new(
            call, "requestBody",
            json_pack("{s:b,s:o}", "required", 1, "content", content("application/json", body_schema(p))));
    if (!p->open) json_object_set_new(call, "security", json_pack("[{s:[]}]", "key"));
    char method[8] = "";
    for (size_t i = 0; p->method[i] && i + 1 < sizeof method; i++)
        method[i] = (char)(p->method[i] - 'A' + 'a'); /* OpenAPI writes methods in lower case */
    return json_pack("{s:o}", method, call);
}

json_t *openapi_document(json_t *paths) {
    return json_pack("{s:s,s:{s:s,s:s},s:o,s:{s:{s:{s:s,s:s}}}}", "openapi", "3.1.0", "info", "title",
                     "isotron serve", "version", isotron_version(), "paths", paths, "components",
                     "securitySchemes", "key", "type", "http", "scheme", "bearer");
}
