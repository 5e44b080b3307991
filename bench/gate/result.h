/* Reads the file that `bench train --json`, `bench infer --json` or `bench ops --json` writes, as rows of times. The
 * file is untrusted. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/err.h"
#include "base/str.h"

enum { RESULT_NAME = 96 };

typedef struct ResultRow {
    char name[RESULT_NAME]; /* "step", or the name of a case with its type */
    double time;            /* the median, in `unit` */
    const json_t *samples;  /* the times whose median is `time` */
    const json_t *json;     /* the row of `bench ops`, or NULL for a step */
} ResultRow;

typedef struct Result {
    const char *path; /* the origin of the result, for messages */
    const char *unit;
    json_t *json; /* owned */
    ResultRow *rows;
    int64_t n;
} Result;

/* Parses a result. `path` must outlive the result. The caller must call result_free, even after an error. */
Err result_parse(const char *path, const char *text, size_t n, Result *out);
/* Like result_parse, except that the JSON has already been parsed. Takes ownership of the JSON. */
Err result_take(const char *path, json_t *, Result *out);
void result_free(Result *);

/* A process that measures by running `PROGRAM bench NAME words... --json FILE`. */
typedef struct Measurer {
    const char *program, *name; /* path of the executable, and its name in messages */
    const char *bench;
    char **words; /* the list ends with NULL */
    /* options to omit; "pairs=" takes a value, and "weak" takes none; the list ends with NULL */
    const char *const *without;
} Measurer;
/* Runs the process with additional arguments (`more` ends with NULL). If this process ends first, the child
 * process is killed. */
Err result_measure(const Measurer *, char *const *more, Result *out);

/* Writes the name of an op's row, such as "linear/fc1 bf16". Returns false if the row has no name. */
bool result_name(const json_t *row, char name[RESULT_NAME]);
/* Returns the row with the given name, or NULL if there is none. */
const ResultRow *result_find(const Result *, const char *name);
/* Returns a string of the result's provenance, such as "commit", or "unknown" if the provenance lacks the
 * string. */
const char *result_fact(const Result *, const char *name);
