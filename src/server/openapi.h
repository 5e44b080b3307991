/* Describes the server's paths and the fields of their requests as an OpenAPI document. */
#pragma once

#include "server/fields.h"

typedef struct ApiPath {
    const char *method, *path, *summary; /* a path can end in {model}, the model's name */
    const char *answer;  /* the answer's schema in answers.def; NULL if the answer is not JSON */
    const char *type;    /* the answer's content type; NULL for JSON */
    const char *refused; /* the statuses of refusals, except those that openapi.c adds; may be NULL */
    const char *refusal; /* the schema of refusals; NULL for OpenAI's error object */
    const char *also;    /* statuses apart from 200 whose answers have the answer's schema; may be NULL */
    bool open;           /* whether the path can be used without a key */
    bool control;        /* whether the path exists only with --enable-control */
    bool has_body;       /* whether the body has the fields of `endpoint` */
    Endpoint endpoint;
    const char *required; /* a field that every body must have, or NULL */
} ApiPath;

/* Returns a path's part of the document. */
json_t *openapi_path(const ApiPath *);
/* Returns the entire document. Takes ownership of `paths`, an object that contains the parts. Token ids are less than
 * `vocab`. */
json_t *openapi_document(json_t *paths, const char *model, int64_t vocab);
