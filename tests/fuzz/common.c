#include "fuzz/fuzz.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/file.h"
#include "base/mem.h"

char *fuzz_path(const char *name) {
    char *folder = mem_printf("/tmp/isotron-fuzz-%d", (int)getpid());
    Err err = file_mkdirs(folder);
    CHECK(!err.code, "%s", err.msg);
    char *path = mem_printf("%s/%s", folder, name);
    free(folder);
    return path;
}

char *fuzz_file(const char *name, const void *bytes, size_t n) {
    char *path = fuzz_path(name);
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(bytes, 1, n, f) == n && !fclose(f), "cannot write %s", path);
    return path;
}

bool fuzz_ok(Err err) {
    if (!err.code) return true;
    size_t n = strnlen(err.msg, sizeof err.msg);
    CHECK(n > 10 && n < sizeof err.msg && strchr(err.msg, ' '), "the error is not a sentence: \"%s\"",
          err.msg);
    return false;
}

void corpus_add(Corpus *c, const void *bytes, size_t n) {
    c->seeds = mem_grow(c->seeds, (size_t)c->n + 1, sizeof *c->seeds);
    c->seeds[c->n] = (Str){0};
    str_add(&c->seeds[c->n++], bytes, n);
}

void corpus_add_file(Corpus *c, const char *path) {
    Str s = {0};
    Err err = file_read(path, &s);
    CHECK(!err.code, "%s", err.msg);
    corpus_add(c, s.s, s.len);
    str_free(&s);
}

void corpus_add_glob(Corpus *c, const char *pattern) {
    glob_t found;
    CHECK(glob(pattern, 0, NULL, &found) == 0, "no file matches %s", pattern);
    for (size_t i = 0; i < found.gl_pathc; i++) corpus_add_file(c, found.gl_pathv[i]);
    globfree(&found);
}
