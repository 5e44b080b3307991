#include <stdio.h>

#include "main/command.h"

static Err run(void *unused) {
    (void)unused;
    Str text = {0};
    config_options_md(&text);
    fputs(text.s, stdout);
    str_free(&text);
    return ERR_OK;
}

int command_docs(int argc, char **argv) {
    Arena *arena = arena_new();
    Args args;
    args_init(&args, arena,
              "isotron docs\n\nPrints docs/reference/options.md: every option of a run with its default, "
              "range and meaning.\n\nexample: isotron docs > options.md",
              NULL);
    args_line(&args, argc, argv);
    const int status = command_finish(&args, args_end(&args), run, NULL);
    arena_free(arena);
    return status;
}
