#include <stddef.h>
#include <stdio.h>

#include "data/indexed.h"
#include "main/command.h"

typedef struct Options {
    const char *input, *output_prefix;
} Options;

static const Arg ROWS[] = {
    {.names = "input",
     .type = ARG_TEXT,
     .offset = offsetof(Options, input),
     .fallback = "none",
     .required = true,
     .help = "Folder with the .bin/.idx pairs to merge."},
    {.names = "output-prefix",
     .type = ARG_TEXT,
     .offset = offsetof(Options, output_prefix),
     .fallback = "none",
     .required = true,
     .help = "The result is PREFIX.bin and PREFIX.idx."},
};

int command_merge(int argc, char **argv) {
    Arena *arena = arena_new();
    Options o;
    Args args;
    args_init(&args, arena, "isotron merge --input FOLDER --output-prefix PREFIX", NULL);
    args_use(&args, (ArgTable){.rows = ROWS, .count = sizeof ROWS / sizeof *ROWS, .target = &o});
    args_line(&args, argc, argv);
    Err e = args_end(&args);
    int status;
    if (command_ready(&args, e, &status)) {
        e = data_merge_folder(o.input, o.output_prefix);
        status = e.code ? command_fail(e) : 0;
    }
    args_free(&args);
    arena_free(arena);
    return status;
}
