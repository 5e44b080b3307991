/* Configurations for tests: converts words of a command line to a finished Config. */
#pragma once

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "unit/err.h"

#include "base/mem.h"
#include "config/config.h"

typedef struct Setup {
    Arena *arena;
    Config config;
} Setup;

/* Options that every training run must have. They are added if the words of a call lack them. */
static const char *const SETUP_REQUIRED[][2] = {
    {"--num-layers", "2"},   {"--hidden-size", "16"}, {"--num-attention-heads", "2"},
    {"--seq-length", "8"},   {"--lr", "0.001"},       {"--micro-batch-size", "1"},
    {"--train-iters", "10"}, {"--vocab-size", "32"},  {"--tokenizer-type", "NullTokenizer"},
    {"--mock-data", NULL},
};

static inline bool setup_names(const char *text, const char *name) {
    size_t n = strlen(name);
    for (const char *at = text; (at = strstr(at, name)); at += n)
        if (!at[n] || at[n] == ' ') return true;
    return false;
}

/* The words of the text are separated by spaces. Release with setup_free. */
__attribute__((format(printf, 1, 2))) static inline Setup *setup_new(const char *fmt, ...) {
    enum { WORDS = 128 };
    Arena *arena = arena_new();
    Setup *s = arena_alloc(arena, sizeof *s);
    s->arena = arena;
    char *text = arena_alloc(arena, 4096), *argv[WORDS], *save = NULL;
    int argc = 0;
    va_list list;
    va_start(list, fmt);
    assert_in_range(vsnprintf(text, 4096, fmt, list), 0, 4095);
    va_end(list);
    for (size_t i = 0; i < sizeof SETUP_REQUIRED / sizeof *SETUP_REQUIRED; i++) {
        const char *name = SETUP_REQUIRED[i][0], *value = SETUP_REQUIRED[i][1];
        bool samples = !strcmp(name, "--train-iters") && setup_names(text, "--train-samples");
        if (samples || setup_names(text, name)) continue;
        argv[argc++] = arena_printf(arena, "%s", name);
        if (value) argv[argc++] = arena_printf(arena, "%s", value);
    }
    for (char *word = strtok_r(text, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        assert_in_range(argc, 0, WORDS - 1);
        argv[argc++] = word;
    }
    Args args;
    args_init(&args, arena, "isotron pretrain [options]", NULL);
    Err e = config_parse(&s->config, &args, USE_ALL, CHECK_MODEL | CHECK_TRAIN, argc, argv);
    if (e.code) print_error("%s\n%s", e.msg, args.problems.s ? args.problems.s : "");
    assert_ok(e);
    args_free(&args);
    config_finish(&s->config, arena, 0);
    return s;
}

static inline void setup_free(Setup *s) { arena_free(s->arena); }
