/* The machine that runs a template: its limits, its memory and its error. A template is untrusted code, so all work
 * is counted. `err` keeps the first error, which may be that a limit was reached. After an error, all functions of
 * this folder return immediately, and their results have no meaning. */
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
    TemplateLimits left; /* the remaining limits of the template */
    Arena *arena;        /* memory of all values, which is released when the template ends */
    char *tail, *room;   /* the end of the newest concatenated string, and of the memory reserved for it */
    Str *out;            /* the text of the template, or of the macro or block that is being captured */
    const struct tm *now;
    const struct Dict *variables;
} Machine;

/* Sets the error "line N of the chat template: ...", unless there is already an error. */
void machine_fail(Machine *, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Count work or memory, and return false if there is an error. */
bool machine_spend(Machine *, size_t steps);
bool machine_reserve(Machine *, size_t bytes);
/* Returns zeroed memory that is valid as long as the machine, or NULL if there is an error. */
void *machine_take(Machine *, size_t bytes);
/* Returns whether calls are not nested too deeply. After each success, the caller must call machine_leave. */
bool machine_enter(Machine *);
void machine_leave(Machine *);
/* Appends to an unfinished text, unless a limit is reached. */
void machine_add(Machine *, Str *, const char *s, size_t n);
void machine_puts(Machine *, Str *, const char *s);
