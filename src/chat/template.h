/* Interprets templates in the language Jinja, as transformers compiles the chat templates of models. Methods that
 * change a value are hidden, and trim_blocks and lstrip_blocks are set. There are `break`, `continue`, `generation`
 * blocks, raise_exception, strftime_now, and a `tojson` that does not escape HTML. The text is the same byte for
 * byte. An unsupported part is an error that names it; docs/reference/formats.md lists the supported parts.
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

/* The most that one rendering may use. */
typedef struct TemplateLimits {
    int64_t steps;        /* expressions, statements and items; 64 bytes of text count as one step */
    size_t bytes, output; /* memory of values, which is released at the end; text */
    int depth;            /* nesting limit of expressions, statements and values */
} TemplateLimits;

#define TEMPLATE_LIMITS ((TemplateLimits){20000000, (size_t)1 << 28, (size_t)1 << 26, 1000})

/* Parses a template of n bytes. Returns an error for invalid syntax, and for text that is not UTF-8 or longer than
 * 1 MiB. */
Err template_parse(const char *source, size_t n, Template **out);
void template_free(Template *); /* NULL is fine */

/* Appends the text to `out`. `variables` is an object with the variables of the template, and `now` the local time that
 * strftime_now prints. Returns an error if the template raises one or reaches a limit; then `out` has a part of the
 * text. Any number of threads may render the same template concurrently. */
Err template_render(const Template *, const json_t *variables, const struct tm *now, TemplateLimits,
                    Str *out);
