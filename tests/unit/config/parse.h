/* Parses the command line of a run into a Config. */
#pragma once

#include <string.h>

#include "unit/cmocka_all.h"

#include "config/config.h"

typedef struct Parsed {
    Arena *arena;
    Args args;
    Config c;
    Err err;
} Parsed;

static inline void parse_for(Parsed *p, ConfigUse use, unsigned checks, const char *line) {
    p->arena = arena_new();
    args_init(&p->args, p->arena, "test", NULL);
    char *argv[200], *rest = NULL;
    int argc = 0;
    for (char *w = strtok_r(arena_printf(p->arena, "%s", line), " ", &rest); w;
         w = strtok_r(NULL, " ", &rest))
        argv[argc++] = w;
    p->err = config_parse(&p->c, &p->args, use, checks, argc, argv);
}

static inline void parse(Parsed *p, unsigned checks, const char *line) {
    parse_for(p, USE_ALL, checks, line);
}

static inline void done(Parsed *p) {
    args_free(&p->args);
    arena_free(p->arena);
}

static const char VALID[] = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 16 "
                            "--micro-batch-size 2 --train-iters 10 --lr 1e-3 --mock-data";
