/* isotron_mutants --ignore-option FIELD COMMAND ...: the rules check the user's value, but the run uses the default.
 * Each option thus has a planted bug, which tests the rows of the table of options (tests/functional/options). */
#include <stdio.h>
#include <string.h>

#include "config/config.h"
#include "mutants/mutants.h"

static const char *ignored; /* field of options.def */

Err ignore_option(const char *field) {
    for (int i = 0; i < OPTIONS; i++)
        if (config_field_name(i) && !strcmp(config_field_name(i), field)) {
            ignored = field;
            return ERR_OK;
        }
    return err_user("there is no option with the field '%s'; src/config/options.def has them all", field);
}

static void forget(Config *c) {
    static Arena *arena; /* holds texts of defaults until the process ends */
    Config fresh;
    if (!arena) arena = arena_new();
    config_defaults(&fresh, arena);
#define OPT(type, field, fallback, class, names, help)                                                       \
    if (!strcmp(ignored, #field)) c->field = fresh.field, c->given[OPTION_##field] = 0;
#include "config/options.def"
}

/* Commands call config_check without rules after parsing their arguments, and with rules when the options are
 * complete. A checkpoint's options are read between these calls. */
HOOK(void, config_check, const Config *c, unsigned checks, Args *args) {
    __real_config_check(c, checks, args);
    const bool reads_checkpoint = ignored && !strncmp(ignored, "use_checkpoint_", strlen("use_checkpoint_"));
    if (ignored && (checks || reads_checkpoint)) forget((Config *)c);
}

/* Files of data paths are read before rules are checked. */
HOOK(void, config_read_paths, Config *c, Args *args) {
    if (ignored && strstr(ignored, "data_args_path")) forget(c);
    __real_config_read_paths(c, args);
}
