#include <stdio.h>

#include "main/command.h"

int command_docs(int argc, char **argv) {
    Arena *arena = arena_new();
    Args args;
    args_init(
        &args, arena,
        "isotron docs\n\nPrints docs/reference/options.md: every option of a run with its default, range and "
        "meaning.\n\nexample: isotron docs > options.md",
        NULL);
    args_line(&args, argc, argv);
    Err e = args_end(&args);
    int status;
    if (command_ready(&args, e, &status)) {
        Str text = {0};
        config_options_md(&text);
        fputs(text.s, stdout);
        status = 0;
        str_free(&text);
    }
    args_free(&args);
    arena_free(arena);
    return status;
}
