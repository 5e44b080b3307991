/* The functions that a template can call, and the methods on dicts, lists and loops. */
#include <string.h>

#include "chat/call.h"

/* ---- functions ---- */

static Value raise_exception(Machine *m, const CallArgs *a) {
    const Value text = value_text(m, a->at[0]);
    if (!m->err.code)
        machine_fail(m, "the template refuses the conversation: %.*s", (int)(text.n < 600 ? text.n : 600),
                     text.s);
    return UNDEFINED;
}

/* Appends strftime's result for one conversion specifier. The time has no time zone, so %z and %Z are empty, as
 * in Python. */
static void add_time(Machine *m, const char *form, Str *out) {
    char text[200];
    const char last = form[strlen(form) - 1];
    if (!strchr("aAbBcdDeFgGhHIjklmMnpPrRsStTuUVwWxXyYzZ%", last))
        machine_fail(m, "strftime_now does not support %s; use another conversion", form);
    else if (last != 'z' && last != 'Z')
        machine_add(m, out, text, strftime(text, sizeof text, form, m->now));
}

static Value strftime_now(Machine *m, const CallArgs *a) {
    const Value form = a->at[0];
    Str out = {0};
    if (form.type != VALUE_STRING) machine_fail(m, "strftime_now needs a string such as '%%Y-%%m-%%d'");
    for (size_t i = 0; i < form.n && machine_spend(m, 1);) {
        const char *at = memchr(form.s + i, '%', form.n - i);
        const size_t begin = at ? (size_t)(at - form.s) : form.n;
        machine_add(m, &out, form.s + i, begin - i);
        if (!at) break;
        char one[8] = "%";
        size_t n = 1;
        for (i = begin + 1; i < form.n && n < sizeof one - 1 && strchr("-_0^#EO", form.s[i]); i++)
            one[n++] = form.s[i];
        if (i < form.n) one[n++] = form.s[i++];
        add_time(m, one, &out);
    }
    return value_take(m, &out);
}

static Value range(Machine *m, const CallArgs *a) {
    int64_t bounds[3] = {0, 0, 1};
    for (size_t i = 0; i < 3; i++) bounds[i] = value_integer(m, a->at[i], bounds[i], "range needs integers");
    if (a->at[1].type == VALUE_MISSING) bounds[1] = bounds[0], bounds[0] = 0;
    if (!bounds[2]) machine_fail(m, "the step of range is 0; use another number");
    Value made = value_list(m, KIND_RANGE);
    for (int64_t i = bounds[0]; (bounds[2] < 0 ? i > bounds[1] : i < bounds[1]) && !m->err.code;) {
        if (made.list->n == 100000)
            machine_fail(m, "range has more than 100000 numbers; use a smaller range");
        list_push(m, made.list, value_int(i));
        if (__builtin_add_overflow(i, bounds[2], &i)) break;
    }
    return made;
}

/* Copies the items from a dict or a list of pairs. */
static void copy_items(Machine *m, Value from, Dict *to) {
    const bool is_dict = from.type == VALUE_DICT || from.type == VALUE_NAMESPACE;
    for (size_t i = 0; is_dict && i < from.dict->n && !m->err.code; i++)
        dict_set(m, to, from.dict->at[i].key, from.dict->at[i].value);
    if (is_dict) return;
    if (from.type == VALUE_UNDEFINED) value_fail_undefined(m, from);
    const List *items = value_items(m, from);
    for (size_t i = 0; i < items->n && !m->err.code; i++) {
        const List *pair = value_items(m, items->at[i]);
        if (!m->err.code && pair->n != 2)
            machine_fail(m, "a dict can be created only from a dict or from pairs");
        if (!m->err.code) dict_set(m, to, pair->at[0], pair->at[1]);
    }
}

static Value dict(Machine *m, const CallArgs *a) {
    Value made = value_dict(m);
    if (a->n > 1) machine_fail(m, "dict and namespace have at most one positional argument");
    if (a->n && !m->err.code) copy_items(m, a->at[0], made.dict);
    if (a->names && !m->err.code)
        copy_items(m, (Value){.type = VALUE_DICT, .dict = (Dict *)a->names}, made.dict);
    return made;
}

static Value namespace(Machine *m, const CallArgs *a) {
    Value made = dict(m, a);
    for (size_t i = 0; !m->err.code && i < made.dict->n; i++) {
        const Value key = made.dict->at[i].key;
        if (key.type == VALUE_STRING && key.n && *key.s == '_')
            machine_fail(m, "the attribute %s of a namespace begins with _; rename it", value_quote(key).s);
    }
    made.type = m->err.code ? VALUE_UNDEFINED : VALUE_NAMESPACE;
    return made;
}

const Builtin CHAT_FUNCTIONS[] = {
    {"raise_exception", raise_exception, 1, "message"},
    {"strftime_now", strftime_now, 1, "format"},
    {"range", range, 1, "start stop step"},
    {"dict", dict, 0, NULL},
    {"namespace", namespace, 0, NULL},
    {NULL, NULL, 0, NULL},
};

/* ---- dict methods ---- */

static Value get(Machine *m, const CallArgs *a) {
    const Value *found = dict_get(m, a->at[0].dict, a->at[1]);
    return found ? *found : a->at[2].type == VALUE_MISSING ? value_none() : a->at[2];
}

static Value view(Machine *m, const CallArgs *a, bool keys, bool values) {
    const Dict *dict = a->at[0].dict;
    Value made = value_list(m, KIND_VIEW);
    for (size_t i = 0; i < dict->n && !m->err.code; i++) {
        Value v = keys ? dict->at[i].key : dict->at[i].value;
        if (keys && values) {
            v = value_list(m, KIND_TUPLE);
            list_push(m, v.list, dict->at[i].key);
            list_push(m, v.list, dict->at[i].value);
        }
        list_push(m, made.list, v);
    }
    return made;
}

static Value items(Machine *m, const CallArgs *a) { return view(m, a, true, true); }
static Value keys(Machine *m, const CallArgs *a) { return view(m, a, true, false); }
static Value values(Machine *m, const CallArgs *a) { return view(m, a, false, true); }

static Value copy_dict(Machine *m, const CallArgs *a) {
    Value made = value_dict(m);
    if (!m->err.code) copy_items(m, a->at[0], made.dict);
    return made;
}

const Builtin CHAT_DICT_METHODS[] = {
    {"get", get, 2, "self key default"}, {"items", items, 1, "self"},    {"keys", keys, 1, "self"},
    {"values", values, 1, "self"},       {"copy", copy_dict, 1, "self"}, {NULL, NULL, 0, NULL},
};

/* ---- list and loop methods ---- */

static Value count(Machine *m, const CallArgs *a) {
    int64_t n = 0;
    for (size_t i = 0; i < a->at[0].list->n && !m->err.code; i++)
        n += value_equal(m, a->at[0].list->at[i], a->at[1]);
    return value_int(n);
}

static Value index_of(Machine *m, const CallArgs *a) {
    for (size_t i = 0; i < a->at[0].list->n && !m->err.code; i++)
        if (value_equal(m, a->at[0].list->at[i], a->at[1])) return value_int((int64_t)i);
    machine_fail(m, "index: the list does not contain the value; test it with 'in'");
    return UNDEFINED;
}

static Value copy_list(Machine *m, const CallArgs *a) {
    Value made = value_list(m, KIND_LIST);
    for (size_t i = 0; i < a->at[0].list->n && !m->err.code; i++)
        list_push(m, made.list, a->at[0].list->at[i]);
    if (a->at[0].list->kind != KIND_LIST) machine_fail(m, "a tuple has no method copy; use the tuple itself");
    return made;
}

const Builtin CHAT_LIST_METHODS[] = {
    {"copy", copy_list, 1, "self"},
    {"count", count, 2, "self value"},
    {"index", index_of, 2, "self value"},
    {NULL, NULL, 0, NULL},
};

static Value cycle(Machine *m, const CallArgs *a) {
    if (a->n < 2) machine_fail(m, "cycle needs values");
    return a->n < 2 ? UNDEFINED : a->at[1 + a->at[0].loop->index % (a->n - 1)];
}

static Value changed(Machine *m, const CallArgs *a) {
    Loop *loop = a->at[0].loop;
    Value given = value_list(m, KIND_TUPLE);
    for (size_t i = 1; i < a->n && !m->err.code; i++) list_push(m, given.list, a->at[i]);
    if (m->err.code) return UNDEFINED;
    const Value seen = {.type = VALUE_LIST, .list = (List *)loop->seen};
    if (loop->seen && value_equal(m, seen, given)) return value_bool(false);
    loop->seen = given.list;
    return value_bool(true);
}

const Builtin CHAT_LOOP_METHODS[] = {
    {"cycle", cycle, 1, NULL},
    {"changed", changed, 1, NULL},
    {NULL, NULL, 0, NULL},
};
