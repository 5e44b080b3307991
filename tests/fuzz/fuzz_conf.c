/* Configurations. The input is a run.conf, for which all rules are checked and all derived values are
 * computed; or, if it begins with {, the options of a checkpoint as JSON. */
#include "fuzz/fuzz.h"

#include <glob.h>
#include <stdlib.h>

#include "base/fault.h"
#include "base/file.h"
#include "config/config.h"

static bool read_json(const uint8_t *bytes, size_t n) {
    Arena *arena = arena_new();
    Config config;
    config_defaults(&config, arena);
    Str notes = {0};
    bool ok = fuzz_ok(config_from_json(&config, arena, (const char *)bytes, n, CLASS_ALL, &notes));
    str_free(&notes), arena_free(arena);
    return ok;
}

static bool read_conf(const uint8_t *bytes, size_t n) {
    char *path = fuzz_file("run.conf", bytes, n);
    Arena *arena = arena_new();
    Args args;
    args_init(&args, arena, "fuzz", NULL);
    Config config;
    char option[] = "--config", *words[] = {option, path};
    bool ok =
        fuzz_ok(config_parse(&config, &args, USE_ALL, CHECK_MODEL | CHECK_TRAIN | CHECK_DATA, 2, words));
    CHECK(ok || args.help || args.problems.len, "an error without a sentence");
    if (ok) {
        config_finish(&config, arena, 0);
        Str json = {0};
        config_json(&config, CLASS_ALL, &json);
        CHECK(read_json((const uint8_t *)json.s, json.len), "our own JSON is refused: %s", json.s);
        str_free(&json);
    }
    args_free(&args), arena_free(arena), free(path);
    return ok;
}

bool fuzz_one(const uint8_t *bytes, size_t n) {
    return n && *bytes == '{' ? read_json(bytes, n) : read_conf(bytes, n);
}

void fuzz_seeds(Corpus *c) {
    glob_t found;
    CHECK(glob("golden/*/run.conf", 0, NULL, &found) == 0, "there are no golden cases");
    for (size_t i = 0; i < found.gl_pathc; i++) {
        Str text = {0};
        CHECK(fuzz_ok(file_read(found.gl_pathv[i], &text)), "cannot read a seed");
        str_puts(&text, "data-path = 0.5 \"a b\" 1 c # a blend\n");
        corpus_add(c, text.s, text.len);
        str_free(&text);
    }
    globfree(&found);
    Arena *arena = arena_new();
    Config config;
    config_defaults(&config, arena);
    Str json = {0};
    config_json(&config, CLASS_ALL, &json);
    corpus_add(c, json.s, json.len);
    str_free(&json), arena_free(arena);
}
