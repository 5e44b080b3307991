/* Decides which options each command reads (uses.def and options.def). */
#include "config/config.h"

static const struct {
    const char *name;
    unsigned groups, classes;
} COMMANDS[] = {
#define USE(constant, command, groups, classes) {command, groups, classes},
#include "config/uses.def"
    {"isotron", ~0u, CLASS_ALL},
};

static const struct {
    int group;
    uint64_t class;
} ROWS[OPTIONS] = {
#define OPTGROUP(constant, title)                      {GROUP_##constant, 0},
#define OPT(type, field, fallback, class, names, help) {-1, CLASS_##class},
#include "config/options.def"
};

static int group_of(int64_t option) {
    while (ROWS[option].group < 0) option--;
    return ROWS[option].group;
}

bool config_uses(int use, int64_t option) {
    if (use == USE_ALL) return true;
    const uint64_t class = ROWS[option].class;
    const bool reads = COMMANDS[use].groups & 1u << group_of(option) || COMMANDS[use].classes & class;
    return class & CLASS_ALSO(use) || (reads && !(class & CLASS_EXCEPT(use)));
}

const char *config_use_name(ConfigUse use) { return COMMANDS[use].name; }
