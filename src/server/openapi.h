/* Describes the server's paths and the fields of their requests as an OpenAPI document. */
#pragma once

#include "server/fields.h"

typedef struct ApiPath {
    const char *path, *method, *summary;
    bool open;     /* needs no key */
    bool has_body; /* with the fields of `endpoint` */
    Endpoint endpoint;
    const char *required; /* a field that each body has, or NULL */
    const char *type;     /* of the answer's content; NULL: JSON */
} ApiPath;

/* The document's part for a path. */
json_t *openapi_path(const ApiPath *);
/* The whole document. It takes ownership of `paths`, an object of the parts. */
json_t *openapi_document(json_t *paths);
