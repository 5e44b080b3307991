/* The limits under which a template runs, its memory and its error. A template is untrusted code, so every piece of
 * work is counted. The first error, or a limit that is reached, is kept in `err`; from then on, all functions of this
 * folder return immediately, and their results have no meaning. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "chat/template.h"

typedef struct Machine {
    Err err;
    int line;            /* current line of the template, for messages */
    TemplateLimits left; /* what the template may still use */
    Arena *arena;        /* all values; released when the template ends */
    char *tail, *room;   /* the end of the newest joined string, and of the memory reserved for it */
    Str *out;            /* the text of the template, or of the macro or block that is being captured */
    const struct tm *now;
    const struct Dict *variables;
} Machine;

/* Keeps the first error: "line N of the chat template: ...". */
void machine_fail(Machine *, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Each counts work, or memory, and returns false if there is an error. */
bool machine_spend(Machine *, size_t steps);
bool machine_reserve(Machine *, size_t bytes);
/* Zeroed memory that lives as long as the machine, or NULL if there is an error. */
void *machine_take(Machine *, size_t bytes);
/* Whether the calls are not nested too deeply. Each success needs a machine_leave. */
bool machine_enter(Machine *);
void machine_leave(Machine *);
/* Appends to a text that is being made, unless a limit is reached. */
void machine_add(Machine *, Str *, const char *s, size_t n);
void machine_puts(Machine *, Str *, const char *s);
