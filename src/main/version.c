#include <stdio.h>

#include "base/version.h"
#include "main/command.h"

int command_version(int argc, char **argv) {
    Arena *arena = arena_new();
    Args args;
    args_init(
        &args, arena,
        "isotron version\n\nPrints what this build is: version, commit, compiler, devices and libraries.\n\n"
        "example: isotron version",
        NULL);
    args_line(&args, argc, argv);
    Err e = args_end(&args);
    int status;
    if (command_ready(&args, e, &status)) {
        printf("isotron %s\ncommit: %s\ncompiler: %s %s\ndevices: %s\nlibraries: %s\n", isotron_version(),
               isotron_commit(), isotron_compiler(), isotron_flags(), isotron_devices(), isotron_libraries());
        status = 0;
    }
    args_free(&args);
    arena_free(arena);
    return status;
}
