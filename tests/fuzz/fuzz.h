/* A fuzz target is a set of seeds and a function that passes one input to a reader of user files. The reader
 * must succeed or return an error message. fuzz_<what>.c is linked twice: with libFuzzer (clang, ISOTRON_FUZZ),
 * and with replay.c, which mutates the seeds by a fixed sequence of random numbers, so that CTest runs the same
 * inputs anywhere. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

/* Defined by the target: runs one input and returns whether the reader accepted it. */
bool fuzz_one(const uint8_t *bytes, size_t n);

/* Defined by the target: adds valid files to start from, which fuzz_one must accept. */
typedef struct Corpus {
    Str *seeds;
    int n;
} Corpus;
void fuzz_seeds(Corpus *);
void corpus_add(Corpus *, const void *bytes, size_t n);
void corpus_add_file(Corpus *, const char *path);    /* a file of the repository, which must exist */
void corpus_add_glob(Corpus *, const char *pattern); /* at least one file must match */

/* Returns the path of a file with this name in the scratch folder of this process. The caller frees it. */
char *fuzz_path(const char *name);
/* Writes a file in the scratch folder and returns its path. */
char *fuzz_file(const char *name, const void *bytes, size_t n);
/* Whether there is no error. Aborts if an error has no message. */
bool fuzz_ok(Err);
