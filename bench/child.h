/* A process that measures: `PROGRAM bench NAME words... --json FILE`, and the result that it writes. */
#ifndef ISOTRON_BENCH_CHILD_H
#define ISOTRON_BENCH_CHILD_H

#include "bench/gate/result.h"

typedef struct Child {
    const char *program, *name; /* a file, and its name in messages */
    const char *bench;
    char **words; /* ends with NULL */
} Child;

/* An option that children do not get. */
typedef struct ChildOption {
    const char *name;
    bool has_value;
} ChildOption;

/* The words without those options, then `more` (NULL: none), then NULL; to release with free(). */
char **child_words(int argc, char **argv, const ChildOption *without, int n, const char *more);
/* Runs it with further words (ends with NULL; NULL: none). A process that fails is a user error with its last line.
 * It ends when this process ends. */
Err child_run(const Child *, char **more, Result *out);

#endif
