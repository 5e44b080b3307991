/* Reports options that were given but have no effect without other options (the NEEDS rows in rules.def). */
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "config/config.h"

static bool has_experts(const Config *c) { return i64_is_set(c->num_experts); }
static bool is_type(const Config *c, const char *type) {
    return c->tokenizer_type && !strcmp(c->tokenizer_type, type);
}
static bool reads_vocab_file(const Config *c) {
    return is_type(c, "GPT2BPETokenizer") || is_type(c, "BertWordPieceLowerCase") ||
           is_type(c, "BertWordPieceCase");
}

/* Returns whether the option's value requests a feature. A boolean that is set to its default requests
 * nothing. */
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

/* Reports an option that has no effect, as an error if `refused` is true, and otherwise as a note. */
static void unused(const Config *c, int option, bool refused, const char *without, Args *args) {
    const Arg *row = &CONFIG_ROWS[option];
    if (!args->line || c->given[option] != args->line || !asks(c, option)) return;
    if (refused)
        args_problem(args, "--%.*s has no effect without %s: remove it.", (int)arg_name_len(row), row->names,
                     without);
    else
        idle(row, without, args);
}

/* For a model without experts, notes that the expert options have no effect. */
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
        bool used;
        const char *without, *options;
    } rows[] = {
#define NEEDS(check, condition, without, options) {CHECK_##check, (condition), without, options},
#include "config/rules.def"
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].used || (rows[i].check & checks) != rows[i].check) continue;
        for (const char *s = rows[i].options; *s; s += strspn(s, " ")) {
            const bool ours = *s == '~';
            s += ours;
            const size_t n = strcspn(s, " ");
            const int option = config_find(s, n);
            CHECK(option >= 0, "a rule names no option: %s", s);
            unused(c, option, ours || checks & CHECK_STRICT, rows[i].without, args);
            s += n;
        }
    }
    if ((checks & CHECK_MODEL) && !has_experts(c)) unused_experts(c, args);
}
