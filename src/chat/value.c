#include "chat/value.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

/* ---- construction ---- */

Value value_string(Machine *m, const char *s, size_t n) {
    char *copy = machine_take(m, n);
    if (!copy) return UNDEFINED;
    memcpy(copy, s, n);
    return value_view(copy, n);
}

Value value_take(Machine *m, Str *text) {
    const Value v = text->len ? value_string(m, text->s, text->len) : value_view("", 0);
    str_free(text);
    return v;
}

/* Memory is reserved after the newest concatenated string, so repeated concatenation, such as ns.text =
 * ns.text ~ x, extends the string in place. The original, shorter string remains valid. */
Value value_join(Machine *m, Value a, Value b) {
    if (!b.n) return a;
    if (!a.n) return b;
    if (a.s + a.n != m->tail || (size_t)(m->room - m->tail) < b.n) {
        const size_t cap = 2 * (a.n + b.n);
        char *made = machine_take(m, cap);
        if (!made) return UNDEFINED;
        memcpy(made, a.s, a.n);
        a.s = made, m->tail = made + a.n, m->room = made + cap;
    } else if (!machine_spend(m, b.n / 64))
        return UNDEFINED;
    memcpy(m->tail, b.s, b.n);
    m->tail += b.n;
    return value_view(a.s, a.n + b.n);
}

Value value_list(Machine *m, ListKind kind) {
    List *list = machine_take(m, sizeof *list);
    if (!list) return UNDEFINED;
    list->kind = kind;
    return (Value){.type = VALUE_LIST, .list = list};
}

/* Returns an array with space for one more element. */
static void *grow(Machine *m, void *old, size_t n, size_t *cap, size_t size) {
    if (n < *cap) return old;
    void *made = machine_take(m, (*cap = 2 * n + 4) * size);
    if (made && n) memcpy(made, old, n * size);
    return made;
}

void list_push(Machine *m, List *list, Value v) {
    if (m->err.code) return;
    Value *at = grow(m, list->at, list->n, &list->cap, sizeof v);
    if (!at) return;
    list->at = at;
    list->at[list->n++] = v;
}

Value value_dict(Machine *m) {
    Dict *dict = machine_take(m, sizeof *dict);
    return dict ? (Value){.type = VALUE_DICT, .dict = dict} : UNDEFINED;
}

static bool hashable(Value v) {
    if (v.type == VALUE_DICT || (v.type == VALUE_LIST && v.list->kind != KIND_TUPLE)) return false;
    for (size_t i = 0; v.type == VALUE_LIST && i < v.list->n; i++)
        if (v.list->at[i].type == VALUE_LIST || v.list->at[i].type == VALUE_DICT) return false;
    return true;
}

const Value *dict_get(Machine *m, const Dict *dict, Value key) {
    if (key.type == VALUE_STRING) return dict_get_text(m, dict, key.s, key.n);
    if (!hashable(key)) return NULL;
    for (size_t i = 0; i < dict->n; i++)
        if (value_equal(m, dict->at[i].key, key)) return &dict->at[i].value;
    return NULL;
}

const Value *dict_get_text(Machine *m, const Dict *dict, const char *key, size_t n) {
    if (!machine_spend(m, dict->n / 8)) return NULL;
    for (size_t i = 0; i < dict->n; i++) {
        const Value *k = &dict->at[i].key;
        if (k->type == VALUE_STRING && k->n == n && !memcmp(k->s, key, n)) return &dict->at[i].value;
    }
    return NULL;
}

void dict_set(Machine *m, Dict *dict, Value key, Value v) {
    if (m->err.code) return;
    if (!hashable(key)) {
        machine_fail(m, "%s cannot be a key of a dict; use a string", value_type_name(key));
        return;
    }
    Value *old = (Value *)dict_get(m, dict, key);
    if (m->err.code) return;
    if (old) {
        *old = v;
        return;
    }
    Pair *at = grow(m, dict->at, dict->n, &dict->cap, sizeof *at);
    if (!at) return;
    dict->at = at;
    dict->at[dict->n++] = (Pair){key, v};
}

static Value container_of_json(Machine *m, const json_t *json) {
    if (!machine_enter(m)) return UNDEFINED;
    const char *key;
    json_t *item;
    const bool is_array = json_is_array(json);
    Value made = is_array ? value_list(m, KIND_LIST) : value_dict(m);
    for (size_t i = 0; is_array && !m->err.code && i < json_array_size(json); i++)
        list_push(m, made.list, value_of_json(m, json_array_get(json, i)));
    if (!is_array && !m->err.code) json_object_foreach((json_t *)json, key, item) {
            Pair *at = grow(m, made.dict->at, made.dict->n, &made.dict->cap, sizeof *at);
            if (!at) break;
            made.dict->at = at; /* the keys are distinct, so no lookup is needed */
            at[made.dict->n++] = (Pair){value_view(key, strlen(key)), value_of_json(m, item)};
        }
    machine_leave(m);
    return made;
}

Value value_of_json(Machine *m, const json_t *json) {
    switch (json_typeof(json)) {
    case JSON_OBJECT:
    case JSON_ARRAY:
        return container_of_json(m, json);
    case JSON_STRING:
        return value_view(json_string_value(json), json_string_length(json));
    case JSON_INTEGER:
        return value_int(json_integer_value(json));
    case JSON_REAL:
        return value_float(json_real_value(json));
    case JSON_NULL:
        return value_none();
    default:
        return value_bool(json_is_true(json));
    }
}

/* ---- operations ---- */

bool value_is(Value v, const char *text) {
    return v.type == VALUE_STRING && v.n == strlen(text) && !memcmp(v.s, text, v.n);
}

bool value_is_number(Value v) { return v.type == VALUE_BOOL || v.type == VALUE_INT || v.type == VALUE_FLOAT; }

double value_number(Value v) { return v.type == VALUE_FLOAT ? v.f : (double)value_whole(v); }

static const char *type_name(ValueType type) {
    static const char *const NAMES[] = {"a missing value",
                                        "an undefined value",
                                        "none",
                                        "a bool",
                                        "an int",
                                        "a float",
                                        "a string",
                                        "markup",
                                        "a list",
                                        "a dict",
                                        "a namespace",
                                        "a loop",
                                        "a function"};
    return NAMES[type];
}

const char *value_type_name(Value v) {
    static const char *const KINDS[] = {"a list", "a tuple", "a range", "a view of a dict", "an iterator"};
    return v.type == VALUE_LIST ? KINDS[v.list->kind] : type_name(v.type);
}

Quoted value_quote(Value v) {
    Str text = {0};
    Quoted made;
    str_quote(&text, v.s, v.n);
    snprintf(made.s, sizeof made.s, "%s", text.s);
    str_free(&text);
    return made;
}

void value_fail_undefined(Machine *m, Value v) {
    if (v.of != VALUE_MISSING && !v.n)
        machine_fail(m, "%s has no item with this index or key; test it with 'is defined'", type_name(v.of));
    else if (v.of != VALUE_MISSING)
        machine_fail(m, "%s has no attribute %s; test it with 'is defined'", type_name(v.of),
                     value_quote(v).s);
    else
        machine_fail(m, "%s is undefined; pass the variable, or test it with 'is defined'",
                     v.n ? value_quote(v).s : "a value");
}

void value_fail_type(Machine *m, Value v, const char *needs) {
    if (v.type == VALUE_UNDEFINED) value_fail_undefined(m, v);
    machine_fail(m, "%s, not %s", needs, value_type_name(v));
}

int64_t value_integer(Machine *m, Value v, int64_t fallback, const char *needs) {
    if (v.type == VALUE_MISSING || v.type == VALUE_NONE) return fallback;
    if (!value_is_int(v)) value_fail_type(m, v, needs);
    return value_whole(v);
}

bool value_true(Value v) {
    switch (v.type) {
    case VALUE_BOOL:
        return v.b;
    case VALUE_INT:
        return v.i != 0;
    case VALUE_FLOAT:
        return v.f != 0;
    case VALUE_STRING:
    case VALUE_MARKUP:
        return v.n != 0;
    case VALUE_LIST:
        return v.list->n != 0 || v.list->kind == KIND_ITERATOR;
    case VALUE_DICT:
        return v.dict->n != 0;
    default:
        return v.type > VALUE_NONE;
    }
}

/* Compares an integer with a double exactly. Returns -1, 0 or 1, or 2 if the double is a NaN. */
static int mixed_order(int64_t i, double f) {
    if (isnan(f)) return 2;
    if (f >= 9223372036854775808.0) return -1;
    if (f < -9223372036854775808.0) return 1;
    const int64_t whole = (int64_t)f;
    if (i != whole) return i < whole ? -1 : 1;
    const double rest = f - (double)whole;
    return (rest < 0) - (rest > 0);
}

static int number_order(Value a, Value b) {
    if (a.type != VALUE_FLOAT && b.type != VALUE_FLOAT) {
        const int64_t x = value_whole(a), y = value_whole(b);
        return (x > y) - (x < y);
    }
    if (a.type != VALUE_FLOAT) return mixed_order(value_whole(a), b.f);
    if (b.type != VALUE_FLOAT) {
        const int order = mixed_order(value_whole(b), a.f);
        return order == 2 ? 2 : -order;
    }
    return isnan(a.f) || isnan(b.f) ? 2 : (a.f > b.f) - (a.f < b.f);
}

static bool is_text(Value v) { return v.type == VALUE_STRING || v.type == VALUE_MARKUP; }

static bool equal_lists(Machine *m, const List *a, const List *b) {
    if (a == b) return true;
    if (a->kind != b->kind || a->n != b->n || a->kind > KIND_RANGE || !machine_enter(m)) return false;
    bool same = true;
    for (size_t i = 0; i < a->n && same; i++) same = value_equal(m, a->at[i], b->at[i]);
    machine_leave(m);
    return same;
}

static bool equal_dicts(Machine *m, const Dict *a, const Dict *b) {
    if (a == b) return true;
    if (a->n != b->n || !machine_enter(m)) return false;
    bool same = true;
    for (size_t i = 0; i < a->n && same; i++) {
        const Value *other = dict_get(m, b, a->at[i].key);
        same = other && value_equal(m, a->at[i].value, *other);
    }
    machine_leave(m);
    return same;
}

bool value_equal(Machine *m, Value a, Value b) {
    if (!machine_spend(m, 1)) return false;
    if (value_is_number(a) && value_is_number(b)) return number_order(a, b) == 0;
    if (is_text(a) && is_text(b))
        return a.n == b.n && machine_spend(m, a.n / 64) && (!a.n || !memcmp(a.s, b.s, a.n));
    if (a.type != b.type) return false;
    if (a.type == VALUE_LIST) return equal_lists(m, a.list, b.list);
    if (a.type == VALUE_DICT) return equal_dicts(m, a.dict, b.dict);
    return a.type <= VALUE_NONE || a.dict == b.dict;
}

static int text_order(Machine *m, Value a, Value b) {
    const size_t n = a.n < b.n ? a.n : b.n;
    machine_spend(m, n / 64);
    const int order = n ? memcmp(a.s, b.s, n) : 0;
    return order ? order : (a.n > b.n) - (a.n < b.n);
}

int value_order(Machine *m, Value a, Value b) {
    if (!machine_enter(m)) return 0;
    int order = 0;
    if (value_is_number(a) && value_is_number(b))
        order = number_order(a, b);
    else if (is_text(a) && is_text(b))
        order = text_order(m, a, b);
    else if (a.type == VALUE_LIST && b.type == VALUE_LIST && a.list->kind == b.list->kind &&
             a.list->kind <= KIND_TUPLE) {
        size_t i = 0;
        while (i < a.list->n && i < b.list->n && value_equal(m, a.list->at[i], b.list->at[i])) i++;
        order = i < a.list->n && i < b.list->n ? value_order(m, a.list->at[i], b.list->at[i])
                                               : (a.list->n > b.list->n) - (a.list->n < b.list->n);
    } else if (a.type == VALUE_UNDEFINED || b.type == VALUE_UNDEFINED)
        value_fail_undefined(m, a.type == VALUE_UNDEFINED ? a : b);
    else
        machine_fail(m, "%s and %s cannot be ordered; compare values of the same type", value_type_name(a),
                     value_type_name(b));
    machine_leave(m);
    return order;
}

bool value_contains(Machine *m, Value container, Value item) {
    if (is_text(container)) {
        if (!is_text(item)) {
            value_fail_type(m, item, "'in' needs a string on the left of a string");
            return false;
        }
        if (!machine_spend(m, container.n / 16)) return false;
        return !item.n || memmem(container.s, container.n, item.s, item.n);
    }
    if (container.type == VALUE_DICT) {
        if (!hashable(item)) machine_fail(m, "%s cannot be a key of a dict", value_type_name(item));
        return !m->err.code && dict_get(m, container.dict, item);
    }
    const List *items = value_items(m, container);
    for (size_t i = 0; !m->err.code && i < items->n; i++)
        if (value_equal(m, items->at[i], item)) return true;
    return false;
}

static const List NO_ITEMS;

static const List *characters(Machine *m, Value text) {
    Value made = value_list(m, KIND_LIST);
    for (size_t i = 0, n; i < text.n && !m->err.code; i += n) {
        uint32_t c;
        n = utf8_next(text.s + i, &c);
        list_push(m, made.list, value_view(text.s + i, n));
    }
    return m->err.code ? &NO_ITEMS : made.list;
}

static const List *rest_of_iterator(Machine *m, List *list) {
    const size_t from = list->read;
    list->read = list->n;
    if (!from) return list;
    Value made = value_list(m, KIND_LIST);
    for (size_t i = from; i < list->n && !m->err.code; i++) list_push(m, made.list, list->at[i]);
    return m->err.code ? &NO_ITEMS : made.list;
}

const List *value_items(Machine *m, Value v) {
    if (m->err.code) return &NO_ITEMS;
    if (is_text(v)) return characters(m, v);
    if (v.type == VALUE_LIST) return v.list->kind == KIND_ITERATOR ? rest_of_iterator(m, v.list) : v.list;
    if (v.type == VALUE_DICT) {
        Value keys = value_list(m, KIND_LIST);
        for (size_t i = 0; i < v.dict->n && !m->err.code; i++) list_push(m, keys.list, v.dict->at[i].key);
        return m->err.code ? &NO_ITEMS : keys.list;
    }
    if (v.type != VALUE_UNDEFINED)
        machine_fail(m, "%s has no items; use a list, a dict or a string", value_type_name(v));
    return &NO_ITEMS;
}

int64_t value_length(Machine *m, Value v) {
    if (is_text(v)) return machine_spend(m, v.n / 16) ? (int64_t)utf8_count(v.s, v.n) : 0;
    if (v.type == VALUE_DICT) return (int64_t)v.dict->n;
    if (v.type == VALUE_UNDEFINED) return 0;
    if (v.type == VALUE_LIST && v.list->kind != KIND_ITERATOR) return (int64_t)v.list->n;
    machine_fail(m, "%s has no length%s", value_type_name(v),
                 v.type == VALUE_LIST ? "; use the filter 'list' first" : "");
    return 0;
}
