/* The file that `bench train --json` or `bench ops --json` writes, as rows of times. The file is untrusted. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/err.h"
#include "base/str.h"

enum { RESULT_NAME = 96 };

typedef struct ResultRow {
    char name[RESULT_NAME]; /* "step", or an op with its type */
    double time;            /* the median, in `unit` */
    const json_t *samples;  /* the times it is of */
    const json_t *json;     /* of a row of ops; NULL: a step */
} ResultRow;

typedef struct Result {
    const char *path; /* where it is from, for messages */
    const char *unit;
    json_t *json; /* owned */
    ResultRow *rows;
    int64_t n;
} Result;

/* `path` must outlive the result. result_free also after an error. */
Err result_parse(const char *path, const char *text, size_t n, Result *out);
/* The same for a parsed file, which is taken over. */
Err result_take(const char *path, json_t *, Result *out);
void result_free(Result *);

/* A process that measures: `PROGRAM bench NAME words... --json FILE`. */
typedef struct Measurer {
    const char *program, *name; /* a file, and its name in messages */
    const char *bench;
    char **words; /* ends with NULL */
    const char *const
        *without; /* options that it does not get: "pairs=" with a value, "weak"; ends with NULL */
} Measurer;
/* Runs it with more words (ends with NULL). It ends when this process ends. */
Err result_measure(const Measurer *, char *const *more, Result *out);

/* "linear/fc1 bf16", the name of a row of ops; false: it has none. */
bool result_name(const json_t *row, char name[RESULT_NAME]);
/* NULL: there is no such row. */
const ResultRow *result_find(const Result *, const char *name);
/* "commit" and other texts of its provenance; "unknown" if it has none. */
const char *result_fact(const Result *, const char *name);
