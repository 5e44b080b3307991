#include <stdio.h>

#include "base/version.h"
#include "main/command.h"

static Err run(void *unused) {
    (void)unused;
    printf("isotron %s\ncommit: %s\ncompiler: %s %s\ndevices: %s\nlibraries: %s\n", isotron_version(),
           isotron_commit(), isotron_compiler(), isotron_flags(), isotron_devices(), isotron_libraries());
    return ERR_OK;
}

int command_version(int argc, char **argv) {
    Arena *arena = arena_new();
    Args args;
    args_init(
        &args, arena,
        "isotron version\n\nPrints the version, commit, compiler, devices and libraries of this build.\n\n"
        "example: isotron version",
        NULL);
    args_line(&args, argc, argv);
    const int status = command_finish(&args, args_end(&args), run, NULL);
    arena_free(arena);
    return status;
}
