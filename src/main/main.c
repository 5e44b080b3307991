#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/str.h"
#include "comm/comm.h"
#include "main/command.h"

static const struct {
    const char *name, *what;
    bool on_ranks;
    int (*run)(int argc, char **argv);
} TABLE[] = {
#define COMMAND(name, on_ranks, what) {#name, what, on_ranks, command_##name},
    COMMANDS
#undef COMMAND
};
enum { N_COMMANDS = sizeof TABLE / sizeof *TABLE };

static void usage(FILE *to) {
    fprintf(to, "usage: isotron COMMAND [options]      (isotron COMMAND --help lists its options)\n\n");
    for (int i = 0; i < N_COMMANDS; i++) fprintf(to, "  %-11s %s\n", TABLE[i].name, TABLE[i].what);
}

int main(int argc, char **argv) {
    FaultScope scope = {.where = "rank 0"};
    fault_scope(&scope);
    fault_on_lost_pages();
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is the error of the write */
    if (argc < 2) return usage(stderr), ERR_USER;
    const bool help = !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help");
    if (help && argc == 2) return usage(stdout), 0;
    if (help) argv[1] = argv[2], argv[2] = "--help"; /* isotron help COMMAND */
    if (!strcmp(argv[1], "--version")) argv[1] += 2; /* the command */
    const char *names[N_COMMANDS];
    for (int i = 0; i < N_COMMANDS; i++) {
        names[i] = TABLE[i].name;
        if (strcmp(argv[1], names[i])) continue;
        if (!TABLE[i].on_ranks && comm_processes() > 1)
            return command_fail(err_user("%s runs as one process: start it without mpirun", names[i]));
        return TABLE[i].run(argc - 2, argv + 2);
    }
    const char *near = str_nearest(argv[1], names, N_COMMANDS);
    fprintf(stderr, "isotron: there is no command '%s'%s%s%s; 'isotron --help' lists them\n", argv[1],
            near ? ", did you mean '" : "", near ? near : "", near ? "'" : "");
    return ERR_USER;
}
