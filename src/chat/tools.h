/* Finds the tool calls in the text that a model generates. Calls are JSON or XML between markers, and the chat template
 * determines their format. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/str.h"

typedef struct ToolFormat ToolFormat;

/* Returns the format of calls that a chat template describes, or NULL if the template describes no known
 * format. */
const ToolFormat *tool_format(const char *template, size_t n);
/* Appends the names of the models whose formats are known. */
void tool_format_names(Str *);

/* The tags of a call in XML. A call is `name` NAME `named`, then `key` KEY `keyed` `value` VALUE `valued` for each
 * argument, and then `close`. A missing tag is an empty string. Blanks may separate the parts. One newline at each end
 * of a value is not part of it. VALUE is a string's text, or JSON for any other type. */
typedef struct ToolTags {
    const char *name, *named, *key, *keyed, *value, *valued, *close;
} ToolTags;

/* How text represents calls: begin, before, a call, after, end. A call is XML if `tags` is not NULL, and otherwise
 * {"name": NAME, arguments: VALUE}. A missing marker (`begin` or `end`) is an empty string. If `between` is not NULL,
 * one pair of markers can contain several calls, separated by `between`. Otherwise, each call has a separate pair of
 * markers, and a newline may separate the pairs. */
typedef struct ToolShape {
    const char *begin, *before, *arguments, *between, *after, *end;
    const ToolTags *tags;
} ToolShape;
ToolShape tool_shape(const ToolFormat *);

/* Returns whether an argument's schema, which is part of the schema `parameters`, allows a string. In XML, such an
 * argument's text is a string unless it is JSON of another type that the schema allows. */
bool tool_takes_text(const json_t *parameters, const json_t *schema);

/* Separates content from calls in text that arrives in parts. The concatenated results do not depend on how the text is
 * divided. */
typedef struct ToolText {
    const ToolFormat *format; /* NULL if the text is not searched for calls */
    const json_t *tools;      /* the request's tools; their schemas determine the types of arguments in XML */
    bool single;              /* whether only the first call is read; the text after it is dropped */
    Str held;                 /* text that may be a call, or the start of a marker */
    size_t searched;          /* number of bytes of `held` already searched for the end marker */
    bool inside;              /* whether `held` follows a marker */
    bool bare;                /* whether the calls began without a marker */
    /* whether a non-blank character has occurred since the start or the last call */
    bool said;
    json_t *calls; /* the calls so far, or NULL (owned): [{"name": NAME, "arguments": JSON as text}, ...] */
} ToolText;

/* Appends to `content` the text that belongs to no call, except blanks next to calls. Text that looks like a
 * call but is not valid is treated as content. `end` must be set for the last part. */
void tool_text_push(ToolText *, const char *text, size_t n, bool end, Str *content);
void tool_text_free(ToolText *);
