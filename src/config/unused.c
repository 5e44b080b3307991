/* Given options that have no effect without others (unused.def). */
#include <string.h>

#include "config/config.h"

typedef enum Whose { MEGATRON, OURS } Whose;

/* A boolean given as its default has no effect. */
static bool asks(const Config *c, int option) {
    const ArgType type = CONFIG_ROWS[option].type;
    const void *value = config_value(c, option);
    return (type != ARG_FLAG && type != ARG_OFF) || *(const bool *)value == (type == ARG_FLAG);
}

static void unused(const Config *c, int option, Whose whose, const char *without, bool strict, Args *args) {
    const Arg *row = &CONFIG_ROWS[option];
    const int name = (int)arg_name_len(row);
    if (!args->line || c->given[option] != args->line || !asks(c, option)) return;
    if (strict || whose == OURS)
        args_problem(args, "--%.*s has no effect without %s: remove it.", name, row->names, without);
    else
        args->idle++, args_note(args, "--%.*s has no effect without %s.", name, row->names, without);
}

void config_check_unused(const Config *c, unsigned checks, Args *args) {
    const struct {
        unsigned check;
        Whose whose;
        int option;
        bool used;
        const char *without;
    } rows[] = {
#define UNUSED(check, whose, field, used, without) {CHECK_##check, whose, OPTION_##field, (used), without},
#include "config/unused.def"
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!rows[i].used && (rows[i].check & checks) == rows[i].check)
            unused(c, rows[i].option, rows[i].whose, rows[i].without, checks & CHECK_STRICT, args);
}
