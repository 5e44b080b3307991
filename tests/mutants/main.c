/* The first arguments, --mutant ID or --ignore-option FIELD, are removed; the remaining arguments are a
 * command of the program. */
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

static Err plant(const char *ids) {
    for (const char *id = ids; id; id = strchr(id, ',') ? strchr(id, ',') + 1 : NULL)
        if (!exists(id)) return err_user("there is no mutant '%s'; --mutant list names them", id);
    setenv("ISOTRON_MUTANT", ids, 1);
    return ERR_OK;
}

int main(int argc, char **argv);
HOOK(int, main, int argc, char **argv) {
    const bool plants = argc > 2 && !strcmp(argv[1], "--mutant");
    if (!plants && !(argc > 2 && !strcmp(argv[1], "--ignore-option"))) return __real_main(argc, argv);
    if (plants && !strcmp(argv[2], "list")) return list();
    const Err e = plants ? plant(argv[2]) : ignore_option(argv[2]);
    if (e.code) {
        fprintf(stderr, "isotron_mutants: %s\n", e.msg);
        return e.code;
    }
    argv[2] = argv[0];
    return __real_main(argc - 2, argv + 2);
}
