/* This file and string_methods.c call each other: string methods are looked up as attributes, and some of them slice
 * strings.
 *
 * Looks up attributes, items and slices as Jinja's sandbox does. For a.b, methods take precedence over keys; for
 * a['b'], keys take precedence over methods. */
#include <string.h>

#include "base/utf8.h"
#include "chat/call.h"

static Value method(Machine *m, const Builtin *table, Value self, Value name) {
    const Builtin *b = builtin_find(table, name);
    Callable *made = b ? machine_take(m, sizeof *made) : NULL;
    if (!made) return (Value){0};
    *made = (Callable){.builtin = b, .self = self};
    return (Value){.type = VALUE_CALLABLE, .callable = made};
}

static Value neighbour(const Loop *l, size_t i, Value name) {
    return i < l->items->n ? l->items->at[i] : value_undefined(VALUE_LOOP, name.s, name.n);
}

static Value loop_attribute(const Loop *l, Value name) {
    const int64_t index = (int64_t)l->index, n = (int64_t)l->items->n;
    const struct {
        const char *name;
        Value value;
    } rows[] = {
        {"index", value_int(index + 1)},
        {"index0", value_int(index)},
        {"revindex", value_int(n - index)},
        {"revindex0", value_int(n - index - 1)},
        {"first", value_bool(index == 0)},
        {"last", value_bool(index == n - 1)},
        {"length", value_int(n)},
        {"depth", value_int(l->depth + 1)},
        {"depth0", value_int(l->depth)},
        {"previtem", neighbour(l, l->index - 1, name)},
        {"nextitem", neighbour(l, l->index + 1, name)},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (value_is(name, rows[i].name)) return rows[i].value;
    return (Value){0};
}

/* Returns whether the sandbox hides the method with this name. It hides methods that change the value and, as in Jinja,
 * dict keys with the same names. */
static bool is_hidden(Value of, Value name) {
    static const char *const DICT[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
    for (const char *const *p = DICT; of.type == VALUE_DICT && *p; p++)
        if (value_is(name, *p)) return true;
    return false;
}

/* Returns the method or attribute with this name, or VALUE_MISSING if there is none. Keys of dicts are not searched. */
static Value own_attribute(Machine *m, Value of, Value name) {
    const Value *found;
    Value v;
    switch (of.type) {
    case VALUE_STRING:
        return method(m, CHAT_STRING_METHODS, of, name);
    case VALUE_DICT:
        return is_hidden(of, name) ? value_undefined(VALUE_DICT, name.s, name.n)
                                   : method(m, CHAT_DICT_METHODS, of, name);
    case VALUE_LIST:
        return of.list->kind <= KIND_TUPLE ? method(m, CHAT_LIST_METHODS, of, name) : (Value){0};
    case VALUE_NAMESPACE:
        found = dict_get_text(m, of.dict, name.s, name.n);
        return found ? *found : (Value){0};
    case VALUE_LOOP:
        v = loop_attribute(of.loop, name);
        return v.type == VALUE_MISSING ? method(m, CHAT_LOOP_METHODS, of, name) : v;
    case VALUE_CALLABLE:
        return of.callable->macro && value_is(name, "name") ? of.callable->macro->value : (Value){0};
    default:
        return (Value){0};
    }
}

/* Returns the value of Python's obj[key], or VALUE_MISSING if there is none. */
static Value own_item(Machine *m, Value of, Value key) {
    if (of.type == VALUE_DICT) {
        const Value *found = dict_get(m, of.dict, key);
        return found ? *found : (Value){0};
    }
    const bool indexed = of.type == VALUE_STRING || (of.type == VALUE_LIST && of.list->kind <= KIND_RANGE);
    if (!indexed || !value_is_int(key)) return (Value){0};
    int64_t i = value_whole(key);
    const int64_t n = value_length(m, of);
    if (i < 0) i += n;
    if (i < 0 || i >= n) return (Value){0};
    if (of.type == VALUE_LIST) return of.list->at[i];
    size_t at = 0;
    uint32_t c;
    for (; i; i--) at += utf8_next(of.s + at, &c);
    return value_view(of.s + at, utf8_next(of.s + at, &c));
}

static bool check(Machine *m, Value of) {
    if (of.type == VALUE_UNDEFINED) value_fail_undefined(m, of);
    if (of.type == VALUE_MARKUP)
        machine_fail(m, "markup can only be printed or joined with ~; use 'safe' or 'escape' last");
    return machine_spend(m, 1);
}

Value access_attribute(Machine *m, Value of, Value name) {
    if (!check(m, of)) return UNDEFINED;
    Value v = own_attribute(m, of, name);
    if (v.type == VALUE_MISSING) v = own_item(m, of, name);
    return v.type == VALUE_MISSING ? value_undefined(of.type, name.s, name.n) : v;
}

Value access_item(Machine *m, Value of, Value key) {
    if (!check(m, of)) return UNDEFINED;
    Value v = own_item(m, of, key);
    if (v.type == VALUE_MISSING && key.type == VALUE_STRING) v = own_attribute(m, of, key);
    if (v.type != VALUE_MISSING) return v;
    const bool named = key.type == VALUE_STRING;
    return value_undefined(of.type, named ? key.s : "", named ? key.n : 0);
}

/* ---- slices ---- */

/* Converts index i, which counts from the end if negative, to a position in [least, most]. */
static int64_t clamp(int64_t i, int64_t n, int64_t least, int64_t most) {
    if (i < 0) i = i < -n ? -1 : i + n;
    return i < least ? least : i > most ? most : i;
}

Value access_slice(Machine *m, Value of, Value from, Value to, Value step_of) {
    static const char needs[] = "a slice needs integers";
    if (!check(m, of)) return UNDEFINED;
    const bool is_text = of.type == VALUE_STRING;
    if (!is_text && !(of.type == VALUE_LIST && of.list->kind <= KIND_RANGE)) {
        machine_fail(m, "%s cannot be sliced; use the filter 'list' first", value_type_name(of));
        return UNDEFINED;
    }
    const List *list = value_items(m, of);
    const int64_t n = (int64_t)list->n, step = value_integer(m, step_of, 1, needs);
    if (!step) machine_fail(m, "the step of a slice is 0; use another number");
    const bool back = step < 0;
    const int64_t least = back ? -1 : 0, most = back ? n - 1 : n,
                  begin = clamp(value_integer(m, from, back ? most : 0, needs), n, least, most),
                  end = clamp(value_integer(m, to, back ? INT64_MIN : n, needs), n, least, most);
    if (m->err.code) return UNDEFINED;
    Value made = value_list(m, is_text ? KIND_LIST : of.list->kind);
    Str text = {0};
    for (int64_t i = begin; (back ? i > end : i < end) && !m->err.code;) {
        if (is_text)
            machine_add(m, &text, list->at[i].s, list->at[i].n);
        else
            list_push(m, made.list, list->at[i]);
        if (__builtin_add_overflow(i, step, &i)) break;
    }
    return is_text ? value_take(m, &text) : made;
}
