/* Finds the tool calls in the text that a model generates. The chat template determines the format of calls, which
 * are JSON between markers. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/str.h"

typedef struct ToolFormat ToolFormat;

/* Returns the format of calls that a chat template describes, or NULL if it describes no known format. */
const ToolFormat *tool_format(const char *template, size_t n);

/* How a text has one call: begin, before, {"name": NAME, arguments: VALUE}, after, end. The markers `begin` and `end` are
 * empty if there is none. */
typedef struct ToolShape {
    const char *begin, *before, *arguments, *after, *end;
} ToolShape;
ToolShape tool_shape(const ToolFormat *);

/* Separates the content and the calls of a text that arrives in parts. The concatenated results do not depend on the
 * division into parts. */
typedef struct ToolText {
    const ToolFormat *format; /* NULL if the text has no calls */
    Str held;                 /* text that may be a call, or the beginning of a marker */
    size_t searched;          /* number of bytes of `held` in which no other marker begins */
    bool inside;              /* whether `held` follows a marker */
    bool bare;                /* whether this marker is empty */
    /* whether the text has a character other than blanks since its beginning or the last call */
    bool said;
    json_t *calls; /* the calls so far, or NULL (owned): [{"name": NAME, "arguments": JSON as a text}, ...] */
} ToolText;

/* Appends to `content` the text that belongs to no call, except blanks next to calls. Content includes text that
 * resembles a call but is not a call. `end` must be set for the last part. */
void tool_text_push(ToolText *, const char *text, size_t n, bool end, Str *content);
void tool_text_free(ToolText *);
