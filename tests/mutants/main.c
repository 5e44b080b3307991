/* The words --mutant ID come first and are taken away; the rest is a command of the program. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "mutants/mutants.h"

static int list(void) {
    for (int i = 0; i < MUTANTS; i++) {
        const Mutant *m = &MUTANT_TABLE[i];
        printf("%s\t%s\t%d\t%s\t%s\t%s\t%s\n", m->id, m->family, m->rank, m->op, m->issues, m->cells,
               m->what);
    }
    return 0;
}

static bool exists(const char *id) {
    for (int i = 0; i < MUTANTS; i++)
        if (!strncmp(id, MUTANT_TABLE[i].id, strcspn(id, ":,")) &&
            strlen(MUTANT_TABLE[i].id) == strcspn(id, ":,"))
            return true;
    return false;
}

HOOK(int, main, int argc, char **argv) {
    if (argc < 3 || strcmp(argv[1], "--mutant") != 0) return __real_main(argc, argv);
    if (!strcmp(argv[2], "list")) return list();
    for (const char *id = argv[2]; id; id = strchr(id, ',') ? strchr(id, ',') + 1 : NULL)
        if (!exists(id)) {
            fprintf(stderr, "isotron_mutants: there is no mutant '%s'; --mutant list names them\n", id);
            return ERR_USER;
        }
    setenv("ISOTRON_MUTANT", argv[2], 1);
    argv[2] = argv[0];
    return __real_main(argc - 2, argv + 2);
}
