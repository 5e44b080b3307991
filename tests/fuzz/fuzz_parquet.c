/* Parquet files, read by row and as JSON Lines. Only the first rows are read, because a damaged file may
 * claim any number of rows. */
#include "fuzz/fuzz.h"

#include <stdlib.h>

#include "base/str.h"
#include "data/input.h"
#include "data/parquet/parquet.h"

static const char *const NAMES[] = {"nulls",      "plain",    "lengths",     "deltas",
                                    "dictionary", "overflow", "null_lengths"};
enum { COLUMNS = sizeof NAMES / sizeof *NAMES, ROWS = 200 };

/* Reads only one column, so that damage in other columns is not an error. */
static bool read_column(const char *path, const char *const *name) {
    Parquet *p;
    ParquetText text;
    if (!fuzz_ok(parquet_open(path, name, 1, &p))) return false;
    bool more = true, ok = true;
    Str read = {0};
    for (int i = 0; i < ROWS && ok && more; i++) {
        ok = fuzz_ok(parquet_next(p, &text, &more));
        str_clear(&read);
        if (ok && more) str_add(&read, text.bytes, text.n); /* a sanitizer checks each byte */
    }
    str_free(&read);
    parquet_close(p);
    return ok;
}

static bool read_lines(const char *path) {
    Input *in;
    Str line = {0};
    bool more = true, ok = true;
    if (!fuzz_ok(input_open(path, (InputOptions){.columns = NAMES, .num_columns = COLUMNS}, &in)))
        return false;
    for (int i = 0; i < ROWS && ok && more; i++) {
        str_clear(&line);
        ok = fuzz_ok(input_line(in, true, &line, &more));
    }
    str_free(&line);
    input_close(in);
    return ok;
}

bool fuzz_one(const uint8_t *bytes, size_t n) {
    char *path = fuzz_file("a.parquet", bytes, n);
    bool ok = read_lines(path);
    for (int i = 0; i < COLUMNS; i++) ok &= read_column(path, &NAMES[i]);
    free(path);
    return ok;
}

void fuzz_seeds(Corpus *c) { corpus_add_glob(c, "tests/data/parquet/*.parquet"); }
