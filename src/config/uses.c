/* The options that each command reads (uses.def). */
#include "config/config.h"

typedef enum RuleKind { BEGIN, TAKE_GROUP, TAKE_CLASS, TAKE, LEAVE } RuleKind;

static const struct {
    RuleKind kind;
    int what;
} RULES[] = {
#define USE(constant, command) {BEGIN, USE_##constant},
#define GROUP(constant)        {TAKE_GROUP, GROUP_##constant},
#define CLASS(constant)        {TAKE_CLASS, CLASS_##constant},
#define WITH(field)            {TAKE, OPTION_##field},
#define WITHOUT(field)         {LEAVE, OPTION_##field},
#include "config/uses.def"
};

static const char *const NAMES[] = {
#define USE(constant, command) command,
#define GROUP(constant)
#define CLASS(constant)
#define WITH(field)
#define WITHOUT(field)
#include "config/uses.def"
    "isotron",
};

static int group_of(int64_t option) {
    int group = -1;
    for (int64_t i = 0; i <= option; i++) group += CONFIG_ROWS[i].type == ARG_GROUP;
    return group;
}

bool config_uses(int use, int64_t option) {
    if (use == USE_ALL) return true;
    const int group = group_of(option);
    bool mine = false, uses = false;
    for (size_t i = 0; i < sizeof RULES / sizeof *RULES; i++) {
        const int what = RULES[i].what;
        if (RULES[i].kind == BEGIN) mine = what == use;
        if (!mine) continue;
        if ((RULES[i].kind == TAKE_GROUP && what == group) || (RULES[i].kind == TAKE && what == option) ||
            (RULES[i].kind == TAKE_CLASS && what == (int)config_option_class((int)option)))
            uses = true;
        if (RULES[i].kind == LEAVE && what == option) uses = false;
    }
    return uses;
}

const char *config_use_name(ConfigUse use) { return NAMES[use]; }
