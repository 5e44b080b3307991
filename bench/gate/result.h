/* Reads the file that `bench train --json`, `bench infer --json` or `bench ops --json` writes, as rows of times. The file is
 * untrusted. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/err.h"
#include "base/str.h"

enum { RESULT_NAME = 96 };

typedef struct ResultRow {
    char name[RESULT_NAME]; /* "step", or the name of a case with its type */
    double time;            /* the median, in `unit` */
    const json_t *samples;  /* the times of which `time` is the median */
    const json_t *json;     /* the row of `bench ops`; NULL for a step */
} ResultRow;

typedef struct Result {
    const char *path; /* origin of the result, for messages */
    const char *unit;
    json_t *json; /* owned */
    ResultRow *rows;
    int64_t n;
} Result;

/* `path` must outlive the result. Call result_free also after an error. */
Err result_parse(const char *path, const char *text, size_t n, Result *out);
/* Like result_parse, for a file that is already parsed; takes ownership of the JSON. */
Err result_take(const char *path, json_t *, Result *out);
void result_free(Result *);

/* A process that measures: it runs `PROGRAM bench NAME words... --json FILE`. */
typedef struct Measurer {
    const char *program, *name; /* path of the executable; its name in messages */
    const char *bench;
    char **words;               /* ends with NULL */
    const char *const *without; /* options to omit: "pairs=" takes a value, "weak" does not; ends with NULL */
} Measurer;
/* Runs the process with additional arguments (`more` ends with NULL). The child is killed if this process
 * ends first. */
Err result_measure(const Measurer *, char *const *more, Result *out);

/* Writes the name of a row of ops, such as "linear/fc1 bf16". False if the row has no name. */
bool result_name(const json_t *row, char name[RESULT_NAME]);
/* Returns NULL if there is no such row. */
const ResultRow *result_find(const Result *, const char *name);
/* Returns a string of the result's provenance, such as "commit"; "unknown" if it is absent. */
const char *result_fact(const Result *, const char *name);
