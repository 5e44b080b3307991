/* config.json of a Hugging Face model. The options from an accepted file must satisfy the rules, or the rules must
 * report errors. Their export must be a config.json that is read as the same model. */
#include "fuzz/fuzz.h"

#include <glob.h>
#include <stdlib.h>

#include "base/fault.h"
#include "base/file.h"
#include "ckpt/hf/config.h"

/* Parses a run.conf; returns false if its options break a rule. */
static bool read_options(const char *conf, Arena *arena, Config *config) {
    Args args;
    args_init(&args, arena, "fuzz", NULL);
    char option[] = "--config", *words[] = {option, (char *)conf};
    bool ok = fuzz_ok(config_parse(config, &args, USE_ALL, CHECK_MODEL, 2, words));
    CHECK(ok || args.problems.len, "an error without a sentence");
    if (ok) config_finish(config, arena, 0);
    args_free(&args);
    return ok;
}

static void check_reads_back(const Str *json, const Config *config) {
    char *path = fuzz_file("config.json", (const uint8_t *)json->s, json->len);
    Str notes = {0};
    const Err e = hf_config_read_back(path, config, &notes);
    CHECK(!e.code, "%s: %s", e.msg, json->s);
    str_free(&notes), free(path);
}

bool fuzz_one(const uint8_t *bytes, size_t n) {
    char *path = fuzz_file("config.json", bytes, n);
    Str conf = {0}, json = {0};
    bool ok = fuzz_ok(hf_config_import(path, HF_TYPES, &conf));
    if (ok) {
        char *conf_path = fuzz_file("run.conf", conf.s ? conf.s : "", conf.len);
        Arena *arena = arena_new();
        Config config;
        HfFamily family;
        if (read_options(conf_path, arena, &config) &&
            fuzz_ok(hf_config_export(&config, F32, NULL, &json, &family)))
            check_reads_back(&json, &config);
        arena_free(arena), free(conf_path);
    }
    str_free(&conf), str_free(&json), free(path);
    return ok;
}

void fuzz_seeds(Corpus *c) {
    glob_t found;
    CHECK(glob("golden/*/run.conf", 0, NULL, &found) == 0, "there are no golden cases");
    int seeds = 0;
    for (size_t i = 0; i < found.gl_pathc; i++) {
        Arena *arena = arena_new();
        Config config;
        HfFamily family;
        Str json = {0};
        CHECK(read_options(found.gl_pathv[i], arena, &config), "%s is refused", found.gl_pathv[i]);
        if (fuzz_ok(hf_config_export(&config, F32, NULL, &json, &family)))
            corpus_add(c, json.s, json.len), seeds++;
        str_free(&json), arena_free(arena);
    }
    globfree(&found);
    CHECK(seeds > 0, "no golden case has a config.json");
}
