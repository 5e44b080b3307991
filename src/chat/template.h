/* Interprets Jinja templates with the settings that transformers uses for chat templates. Methods that change a value
 * are hidden, and trim_blocks and lstrip_blocks are set. Templates can use `break`, `continue`, `generation` blocks,
 * raise_exception, strftime_now, and a `tojson` that does not escape HTML. The rendered text is bitwise equal to
 * transformers' rendering. If a template uses an unsupported feature, the error names the feature.
 * docs/reference/formats.md lists the supported features.
 *
 * Sources: the documentation of Jinja 3.1; chat_template_utils.py of transformers 5.24. */
#pragma once

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "base/err.h"
#include "base/str.h"

typedef struct Template Template;

/* The limits for one rendering. */
typedef struct TemplateLimits {
    int64_t steps;        /* number of expressions, statements, items and 64-byte blocks of text */
    size_t bytes, output; /* bytes of memory for values; bytes of printed text */
    int depth;            /* maximum nesting depth of expressions, statements and values */
} TemplateLimits;

#define TEMPLATE_LIMITS ((TemplateLimits){20000000, (size_t)1 << 28, (size_t)1 << 26, 1000})

/* Parses a template of n bytes. Returns an error if the syntax is invalid, or if the text is not UTF-8 or is longer
 * than 1 MiB. */
Err template_parse(const char *source, size_t n, Template **out);
void template_free(Template *); /* the argument may be NULL */

/* Renders a template and appends the text to `out`. `variables` is an object that contains the template's
 * variables, and `now` is the local time that strftime_now prints. Returns an error if the template raises an
 * error or reaches a limit. After an error, `out` contains part of the text. Any number of threads can render
 * the same template concurrently. */
Err template_render(const Template *, const json_t *variables, const struct tm *now, TemplateLimits,
                    Str *out);
