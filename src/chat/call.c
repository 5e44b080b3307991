/* This file and filters.c call each other: the filters `map` and `select` apply filters and tests by name. */
#include "chat/call.h"

#include <string.h>

const Builtin *builtin_find(const Builtin *table, Value name) {
    for (; table->name; table++)
        if (value_is(name, table->name)) return table;
    return NULL;
}

/* Returns the index of the parameter with this name, or -1 if there is none. */
static int find_param(const char *params, Value name) {
    for (int i = 0; *params; i++) {
        const size_t n = strcspn(params, " ");
        if (n == name.n && !memcmp(params, name.s, n)) return i;
        params += n + (params[n] == ' ');
    }
    return -1;
}

static size_t count_params(const char *params) {
    size_t n = *params != '\0';
    for (; *params; params++) n += *params == ' ';
    return n;
}

Value builtin_call(Machine *m, const char *kind, const Builtin *b, const CallArgs *a) {
    if (!machine_spend(m, 1)) return UNDEFINED;
    if (!b->params) return b->run(m, a);
    Value at[MOST_PARAMS] = {{0}};
    if (a->n > count_params(b->params)) {
        machine_fail(m, "the %s '%s' has at most %zu arguments, not %zu", kind, b->name,
                     count_params(b->params), a->n);
        return UNDEFINED;
    }
    for (size_t i = 0; i < a->n; i++) at[i] = a->at[i];
    for (size_t i = 0; a->names && i < a->names->n; i++) {
        const int k = find_param(b->params, a->names->at[i].key);
        if (k < 0 || at[k].type != VALUE_MISSING)
            machine_fail(m, "the %s '%s' has no argument %s here; its arguments are: %s", kind, b->name,
                         value_quote(a->names->at[i].key).s, b->params);
        else
            at[k] = a->names->at[i].value;
    }
    for (int i = 0; i < b->required; i++)
        if (at[i].type == VALUE_MISSING)
            machine_fail(m, "the %s '%s' needs more arguments: %s", kind, b->name, b->params);
    return m->err.code ? UNDEFINED : b->run(m, &(CallArgs){.at = at, .n = MOST_PARAMS});
}

static const Builtin *find(Machine *m, const Builtin *table, const char *kind, Value name) {
    const Builtin *b = builtin_find(table, name);
    if (!b)
        machine_fail(m, "the %s %s is not supported; rewrite the template without it", kind,
                     value_quote(name).s);
    return b;
}

Value filter_apply(Machine *m, Value name, const CallArgs *a) {
    static const char *const FOR_MARKUP[] = {"safe",  "e",       "escape", "length",
                                             "count", "default", "d",      "tojson"};
    const Builtin *b = find(m, CHAT_FILTERS, "filter", name);
    bool allowed = false;
    for (size_t i = 0; i < sizeof FOR_MARKUP / sizeof *FOR_MARKUP; i++)
        allowed |= value_is(name, FOR_MARKUP[i]);
    for (size_t i = 0; i < a->n && !allowed; i++)
        if (a->at[i].type == VALUE_MARKUP)
            machine_fail(m, "the filter %s does not accept markup; use the filter 'safe' or 'escape' last",
                         value_quote(name).s);
    if (m->err.code) return UNDEFINED;
    return b ? builtin_call(m, "filter", b, a) : UNDEFINED;
}

bool test_apply(Machine *m, Value name, const CallArgs *a) {
    const Builtin *b = find(m, CHAT_TESTS, "test", name);
    return b && value_true(builtin_call(m, "test", b, a));
}
