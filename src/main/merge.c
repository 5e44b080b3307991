#include <stddef.h>
#include <stdio.h>

#include "data/indexed.h"
#include "main/command.h"

typedef struct Options {
    const char *input, *output_prefix;
    bool overwrite;
} Options;

static const Arg ROWS[] = {
    ARG_ROW(Options, input, "input", ARG_TEXT, "none", "Folder with the .bin/.idx pairs to merge.",
            .required = true),
    ARG_ROW(Options, output_prefix, "output-prefix", ARG_TEXT, "none",
            "Write the result to PREFIX.bin and PREFIX.idx.", .required = true),
    ARG_ROW(Options, overwrite, "overwrite", ARG_FLAG, "off",
            "Replace PREFIX.bin and PREFIX.idx if they exist."),
};

static Err run(void *options) {
    const Options *o = options;
    ERR_RETURN(indexed_check_target(o->output_prefix, o->overwrite));
    return data_merge_folder(o->input, o->output_prefix);
}

int command_merge(int argc, char **argv) {
    Arena *arena = arena_new();
    Options o;
    Args args;
    args_init(&args, arena,
              "isotron merge --input FOLDER --output-prefix PREFIX [--overwrite]\n\n"
              "Joins all .bin/.idx datasets of a folder into one, in alphabetical order.\n\n"
              "example: isotron merge --input shards --output-prefix corpus",
              NULL);
    args_use(&args, ARG_TABLE(ROWS, &o));
    args_line(&args, argc, argv);
    const int status = command_finish(&args, args_end(&args), run, &o);
    arena_free(arena);
    return status;
}
