/* Describes the server's paths and the fields of their requests as an OpenAPI document. */
#pragma once

#include "server/fields.h"

typedef struct ApiPath {
    const char *path, *method, *summary;
    bool open;     /* whether the path can be used without a key */
    bool has_body; /* whether the body has the fields of `endpoint` */
    Endpoint endpoint;
    const char *required; /* a field that every body must have, or NULL */
    const char *type;     /* the answer's content type; NULL for JSON */
} ApiPath;

/* Returns a path's part of the document. */
json_t *openapi_path(const ApiPath *);
/* Returns the entire document. Takes ownership of `paths`, an object that contains the parts. */
json_t *openapi_document(json_t *paths);
