/* Creates models from options, for tests of the content of Hugging Face files. */
#pragma once

#include <glob.h>

#include "models/model.h"
#include "unit/ckpt/folder.h"

/* A model that is created from the lines of a configuration file. */
typedef struct TestModel {
    Arena *arena;
    Args args;
    Config config;
    Model *model;
    Device *device;
} TestModel;

static inline void test_model_parse(TestModel *m, const char *conf) {
    m->arena = arena_new();
    args_init(&m->args, m->arena, "test", NULL);
    args_use(&m->args, config_table(&m->config, USE_ALL));
    args_bytes(&m->args, "run.conf", conf, strlen(conf));
    config_check(&m->config, CHECK_MODEL, &m->args);
    Err e = args_end(&m->args);
    if (e.code) fail_msg("%s\n%s\n%s", e.msg, m->args.problems.s, conf);
    config_finish(&m->config, m->arena, 0);
}

static inline TestModel *test_model_new(const char *conf, DType storage) {
    TestModel *m = mem_zero(1, sizeof *m);
    test_model_parse(m, conf);
    m->model = model_new(&m->config, NULL);
    m->device = device_cpu(1);
    model_allocate(m->model, m->device, storage, m->config.derived.max_position_embeddings, true);
    return m;
}

static inline void test_model_free(TestModel *m) {
    model_free(m->model);
    device_free(m->device);
    args_free(&m->args);
    arena_free(m->arena);
    free(m);
}

static inline Str slurp(const char *dir, const char *name) {
    Str s = {0};
    char *path = mem_printf("%s/%s", dir, name);
    assert_ok(file_read(path, &s));
    free(path);
    return s;
}

/* Calls `fn` for each golden case with an init.safetensors, which save_pretrained of transformers wrote. */
static inline void for_each_case(void (*fn)(const char *dir)) {
    glob_t cases;
    assert_int_equal(glob("golden/*/init.safetensors", 0, NULL, &cases), 0);
    assert_true(cases.gl_pathc >= 10);
    for (size_t i = 0; i < cases.gl_pathc; i++) {
        char *dir = mem_strdup(cases.gl_pathv[i]);
        *strrchr(dir, '/') = 0;
        fn(dir);
        free(dir);
    }
    globfree(&cases);
}

/* Writes a file without fsync, unlike file_write_atomic. */
static inline void write_text(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}
