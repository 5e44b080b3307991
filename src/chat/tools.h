/* Finds the calls of functions in the text of a model. Chat templates fix how a model writes them: JSON between
 * markers. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/str.h"

typedef struct ToolFormat ToolFormat;

/* The format that a chat template asks for, or NULL if it has none that is known. */
const ToolFormat *tool_format(const char *template, size_t n);

/* Separates a text that arrives in parts. The results, joined, do not depend on the parts. */
typedef struct ToolText {
    const ToolFormat *format; /* NULL: the text has no calls */
    Str held;                 /* text that may be a call, or the beginning of a marker */
    size_t searched;          /* bytes of `held` in which no further marker begins */
    bool inside;              /* `held` follows a marker */
    bool bare;                /* that marker is empty */
    bool said;                /* the text has more than blanks since its beginning or the last call */
    json_t *calls; /* owned; NULL, or the calls so far: [{"name": NAME, "arguments": JSON as a text}, ...] */
} ToolText;

/* Appends to `content` the text that belongs to no call, except blanks next to calls. Content includes
 * text that looks like a call but is not one. `end` is set for the last part. */
void tool_text_push(ToolText *, const char *text, size_t n, bool end, Str *content);
void tool_text_free(ToolText *);
