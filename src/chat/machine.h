/* The machine that runs a template: its limits, its memory and its error. A template is untrusted code, so
 * the machine counts all work. `err` is the first error, such as an exceeded limit. After an error, all
 * functions in this folder return immediately, with meaningless results. */
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
    TemplateLimits left; /* how much of each limit remains */
    Arena *arena;        /* holds all values; released when the template ends */
    char *tail, *room;   /* ends of the newest concatenated string and of the memory reserved for it */
    Str *out;            /* the output of the template, or of the macro or block being captured */
    const struct tm *now;
    const struct Dict *variables;
} Machine;

/* Sets the error "line N of the chat template: ...", unless there is already an error. */
void machine_fail(Machine *, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Count work or memory, and return false if there is an error. */
bool machine_spend(Machine *, size_t steps);
bool machine_reserve(Machine *, size_t bytes);
/* Returns zeroed memory that is valid as long as the machine exists, or NULL if there is an error. */
void *machine_take(Machine *, size_t bytes);
/* Enters a call. Returns false if calls are nested too deeply. After each success, the caller must call
 * machine_leave. */
bool machine_enter(Machine *);
void machine_leave(Machine *);
/* Appends to an unfinished text, unless a limit is reached. */
void machine_add(Machine *, Str *, const char *s, size_t n);
void machine_puts(Machine *, Str *, const char *s);
