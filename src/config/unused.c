/* Given options that have no effect without others (unused.def). */
#include <stdio.h>
#include <string.h>

#include "config/config.h"

typedef enum Whose { MEGATRON, OURS } Whose;

/* A boolean given as its default has no effect. */
static bool asks(const Config *c, int option) {
    const ArgType type = CONFIG_ROWS[option].type;
    const void *value = config_value(c, option);
    return (type != ARG_FLAG && type != ARG_OFF) || *(const bool *)value == (type == ARG_FLAG);
}

static void idle(const Arg *row, const char *without, Args *args) {
    char option[100];
    snprintf(option, sizeof option, "--%.*s", (int)arg_name_len(row), row->names);
    args_remark(args, REMARK_IDLE, option, " without %s.", without);
}

static void unused(const Config *c, int option, Whose whose, const char *without, bool strict, Args *args) {
    const Arg *row = &CONFIG_ROWS[option];
    if (!args->line || c->given[option] != args->line || !asks(c, option)) return;
    if (strict || whose == OURS)
        args_problem(args, "--%.*s has no effect without %s: remove it.", (int)arg_name_len(row), row->names,
                     without);
    else
        idle(row, without, args);
}

/* The options of experts, in a model without experts. */
static void unused_experts(const Config *c, Args *args) {
    ConfigGroup group = GROUPS;
#define OPTGROUP(constant, title) group = GROUP_##constant;
#define OPT(type, field, fallback, class, names, help)                                                       \
    if (group == GROUP_MOE && config_given(c, field) && OPTION_##field != OPTION_num_experts)                \
        idle(&CONFIG_ROWS[OPTION_##field], "--num-experts", args);
#include "config/options.def"
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
    if ((checks & CHECK_MODEL) && !i64_is_set(c->num_experts)) unused_experts(c, args);
}
