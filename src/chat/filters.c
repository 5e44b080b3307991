/* The filters. Each filter accepts the same arguments as in Jinja, and returns an iterator if Jinja's filter
 * does. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "chat/call.h"
#include "chat/lexer.h"
#include "chat/strings.h"

static bool given(Value v) { return v.type != VALUE_MISSING && v.type != VALUE_NONE; }
static bool flag(Value v, bool fallback) { return v.type == VALUE_MISSING ? fallback : value_true(v); }

static int64_t integer(Machine *m, Value v, int64_t fallback) {
    return value_integer(m, v, fallback, "a filter needs an integer as argument");
}

/* ---- text ---- */

static Value to_string(Machine *m, const CallArgs *a) { return value_text(m, a->at[0]); }
static Value lower(Machine *m, const CallArgs *a) {
    return string_case(m, value_text(m, a->at[0]), CASE_LOWER);
}
static Value upper(Machine *m, const CallArgs *a) {
    return string_case(m, value_text(m, a->at[0]), CASE_UPPER);
}
static Value capitalize(Machine *m, const CallArgs *a) {
    return string_capitalize(m, value_text(m, a->at[0]));
}

static Value trim(Machine *m, const CallArgs *a) {
    return string_strip(m, value_text(m, a->at[0]), a->at[1], STRIP_LEFT | STRIP_RIGHT);
}

/* Writes the first character of each word in upper case, not title case, and the others in lower case. A word begins
 * after whitespace or after any of the characters - ( { [ <. */
static Value title(Machine *m, const CallArgs *a) {
    const Value text = value_text(m, a->at[0]);
    Str out = {0};
    for (size_t begin = 0, end; begin < text.n && machine_spend(m, 1); begin = end) {
        bool is_word = false, inside = true;
        for (end = begin; end < text.n && inside;) {
            uint32_t c;
            const size_t n = utf8_next(text.s + end, &c);
            const bool separates = lexer_is_space(c) || (c < 0x80 && strchr("-({[<", (int)c) && c);
            if (end == begin) is_word = !separates;
            inside = separates != is_word;
            if (inside) end += n;
        }
        uint32_t c;
        const size_t n = utf8_next(text.s + begin, &c);
        const Value first = string_case(m, value_view(text.s + begin, n), CASE_UPPER),
                    rest = string_case(m, value_view(text.s + begin + n, end - begin - n), CASE_LOWER);
        if (!m->err.code) machine_add(m, &out, first.s, first.n), machine_add(m, &out, rest.s, rest.n);
    }
    return value_take(m, &out);
}

static Value replace(Machine *m, const CallArgs *a) {
    const Value text = value_text(m, a->at[0]), old = value_text(m, a->at[1]), with = value_text(m, a->at[2]);
    const int64_t most = integer(m, a->at[3], -1);
    return m->err.code ? UNDEFINED : string_replace(m, text, old, with, most);
}

static Value indent(Machine *m, const CallArgs *a) {
    const Value text = a->at[0];
    if (text.type != VALUE_STRING) value_fail_type(m, text, "indent needs a string");
    if (m->err.code) return UNDEFINED;
    Str space = {0}, out = {0};
    if (a->at[1].type == VALUE_STRING)
        machine_add(m, &space, a->at[1].s, a->at[1].n);
    else
        for (int64_t i = integer(m, a->at[1], 4); i > 0 && machine_spend(m, 1); i--)
            machine_puts(m, &space, " ");
    const bool first = flag(a->at[2], false), blank = flag(a->at[3], false);
    Str whole = {0};
    machine_add(m, &whole, text.s, text.n);
    machine_puts(m, &whole, "\n");
    const Value lines = string_lines(m, value_take(m, &whole), false);
    for (size_t i = 0; !m->err.code && i < lines.list->n; i++) {
        const Value line = lines.list->at[i];
        if (i) machine_puts(m, &out, "\n");
        if (i ? line.n || blank : first) machine_add(m, &out, space.s ? space.s : "", space.len);
        machine_add(m, &out, line.s, line.n);
    }
    str_free(&space);
    return value_take(m, &out);
}

static Value escape(Machine *m, const CallArgs *a) {
    if (a->at[0].type == VALUE_MARKUP) return a->at[0];
    Str out = {0};
    value_escape(m, a->at[0], &out);
    Value made = value_take(m, &out);
    made.type = VALUE_MARKUP;
    return made;
}

static Value safe(Machine *m, const CallArgs *a) {
    Value made = value_text(m, a->at[0]);
    made.type = VALUE_MARKUP;
    return made;
}

static Value format(Machine *m, const CallArgs *a) {
    Value values = value_list(m, KIND_TUPLE);
    for (size_t i = 1; i < a->n && !m->err.code; i++) list_push(m, values.list, a->at[i]);
    if (a->names && a->names->n) {
        if (a->n > 1)
            machine_fail(m, "the filter 'format' needs either positional arguments or keywords, not both");
        values = (Value){.type = VALUE_DICT, .dict = (Dict *)a->names};
    }
    return m->err.code || !a->n ? UNDEFINED : operator_format(m, value_text(m, a->at[0]), values);
}

static Value to_json(Machine *m, const CallArgs *a) {
    const Value indent_by = a->at[2], separators = a->at[3];
    JsonForm form = {.ascii = flag(a->at[1], false), .sorted = flag(a->at[4], false), .indent = value_none()};
    form.comma = value_view(", ", 2), form.colon = value_view(": ", 2);
    if (given(indent_by)) {
        form.indent = indent_by.type == VALUE_STRING ? indent_by : value_int(integer(m, indent_by, 0));
        form.comma = value_view(",", 1);
    }
    if (given(separators)) {
        const List *both = value_items(m, separators);
        if (m->err.code) return UNDEFINED;
        if (both->n != 2 || both->at[0].type != VALUE_STRING || both->at[1].type != VALUE_STRING) {
            machine_fail(m, "the separators of tojson must be two strings, such as (',', ':')");
            return UNDEFINED;
        }
        form.comma = both->at[0], form.colon = both->at[1];
    }
    Str out = {0};
    value_json(m, a->at[0], &form, 0, &out);
    return value_take(m, &out);
}

/* ---- numbers ---- */

static Value absolute(Machine *m, const CallArgs *a) {
    const Value v = a->at[0];
    if (v.type == VALUE_FLOAT) return value_float(fabs(v.f));
    if (value_is_number(v)) return value_number(v) < 0 ? operator_negative(m, v) : value_int(value_whole(v));
    return operator_negative(m, v); /* always reports an error here */
}

/* Reads a number as Python's float(text) or int(text, base) does. Whitespace around the number and underscores between
 * digits are allowed. Returns VALUE_MISSING if the text is not a number. */
static Value read_number(Machine *m, Value text, bool is_float, int base) {
    const Value inside = string_strip(m, text, value_none(), STRIP_LEFT | STRIP_RIGHT);
    char digits[400];
    size_t n = 0;
    if (m->err.code || !inside.n || inside.n >= sizeof digits) return (Value){0};
    for (size_t i = 0; i < inside.n; i++) {
        const bool between = i && i + 1 < inside.n && inside.s[i - 1] != '_' && inside.s[i + 1] != '_';
        if (inside.s[i] != '_')
            digits[n++] = inside.s[i];
        else if (!between)
            return (Value){0};
    }
    digits[n] = '\0';
    char *end;
    errno = 0;
    if (strlen(digits) != n || strchr(" \t\n\v\f\r", *digits) || (is_float && strpbrk(digits, "xXpP(")))
        return (Value){0};
    const Value v = is_float ? value_float(strtod(digits, &end)) : value_int(strtoll(digits, &end, base));
    if (*end || end == digits) return (Value){0};
    if (!is_float && errno == ERANGE)
        machine_fail(m, "the integer %.40s is beyond 64 bits; use a smaller one", digits);
    return v;
}

static Value int_of_float(Machine *m, double f, Value fallback) {
    if (isfinite(f) && fabs(f) < 9.2e18) return value_int((int64_t)f);
    if (isfinite(f)) machine_fail(m, "the integer is beyond 64 bits; use a smaller one");
    return fallback;
}

static Value to_int(Machine *m, const CallArgs *a) {
    const Value v = a->at[0], fallback = a->at[1].type == VALUE_MISSING ? value_int(0) : a->at[1];
    const int64_t base = integer(m, a->at[2], 10);
    if (v.type == VALUE_UNDEFINED) value_fail_undefined(m, v);
    if (base != 10 && base != 16 && base != 8 && base != 2)
        machine_fail(m, "the base of an integer must be 2, 8, 10 or 16");
    if (m->err.code) return UNDEFINED;
    if (v.type == VALUE_FLOAT) return int_of_float(m, v.f, fallback);
    if (value_is_int(v)) return value_int(value_whole(v));
    if (v.type != VALUE_STRING) return fallback;
    Value made = read_number(m, v, false, (int)base);
    if (made.type != VALUE_MISSING) return made;
    made = read_number(m, v, true, 10);
    return made.type == VALUE_MISSING ? fallback : int_of_float(m, made.f, fallback);
}

static Value to_float(Machine *m, const CallArgs *a) {
    const Value v = a->at[0], fallback = a->at[1].type == VALUE_MISSING ? value_float(0) : a->at[1];
    if (v.type == VALUE_UNDEFINED) value_fail_undefined(m, v);
    if (value_is_number(v)) return value_float(value_number(v));
    const Value made = v.type == VALUE_STRING ? read_number(m, v, true, 10) : (Value){0};
    return made.type == VALUE_MISSING ? fallback : made;
}

static Value round_number(Machine *m, const CallArgs *a) {
    const Value v = a->at[0];
    const int64_t digits = integer(m, a->at[1], 0);
    const Value method = a->at[2].type == VALUE_MISSING ? value_view("common", 6) : a->at[2];
    const bool common = value_is(method, "common"), up = value_is(method, "ceil");
    if (v.type == VALUE_UNDEFINED) value_fail_undefined(m, v);
    if (!value_is_number(v) || digits < 0 || digits > 15 || !(common || up || value_is(method, "floor")))
        machine_fail(m, "round needs a number, 0 to 15 digits, and the method common, ceil or floor");
    if (m->err.code) return UNDEFINED;
    if (common && v.type != VALUE_FLOAT) return value_int(value_whole(v));
    const double x = value_number(v), scale = pow(10, (double)digits);
    if (!common) return value_float((up ? ceil(x * scale) : floor(x * scale)) / scale);
    char text[400];
    /* as in Python, rounded correctly, with ties to even */
    snprintf(text, sizeof text, "%.*f", (int)digits, x);
    return value_float(strtod(text, NULL));
}

/* ---- values ---- */

static Value default_value(Machine *m, const CallArgs *a) {
    (void)m;
    const bool replaced =
        a->at[0].type == VALUE_UNDEFINED || (flag(a->at[2], false) && !value_true(a->at[0]));
    return !replaced ? a->at[0] : a->at[1].type == VALUE_MISSING ? value_view("", 0) : a->at[1];
}

static Value length(Machine *m, const CallArgs *a) { return value_int(value_length(m, a->at[0])); }

static Value list_of(Machine *m, const List *items, ListKind kind) {
    Value made = value_list(m, kind);
    for (size_t i = 0; i < items->n && !m->err.code; i++) list_push(m, made.list, items->at[i]);
    return made;
}

static Value to_list(Machine *m, const CallArgs *a) {
    return list_of(m, value_items(m, a->at[0]), KIND_LIST);
}

static Value first(Machine *m, const CallArgs *a) {
    if (value_is_list(a->at[0], KIND_ITERATOR)) {
        List *list = a->at[0].list;
        return list->read < list->n ? list->at[list->read++] : UNDEFINED;
    }
    const List *items = value_items(m, a->at[0]);
    return items->n ? items->at[0] : UNDEFINED;
}

static Value last(Machine *m, const CallArgs *a) {
    if (value_is_list(a->at[0], KIND_ITERATOR))
        machine_fail(m, "last needs a list; use the filter 'list' first");
    const List *items = value_items(m, a->at[0]);
    return items->n ? items->at[items->n - 1] : UNDEFINED;
}

static Value reverse(Machine *m, const CallArgs *a) {
    const Value v = a->at[0];
    const List *items = value_items(m, v);
    Value made = value_list(m, KIND_ITERATOR);
    Str text = {0};
    for (size_t i = items->n; i-- && !m->err.code;)
        if (v.type == VALUE_STRING)
            machine_add(m, &text, items->at[i].s, items->at[i].n);
        else
            list_push(m, made.list, items->at[i]);
    return v.type == VALUE_STRING ? value_take(m, &text) : made;
}

static Value items(Machine *m, const CallArgs *a) {
    Value made = value_list(m, KIND_ITERATOR);
    if (a->at[0].type == VALUE_UNDEFINED) return made;
    if (a->at[0].type != VALUE_DICT) value_fail_type(m, a->at[0], "items needs a dict");
    for (size_t i = 0; !m->err.code && i < a->at[0].dict->n; i++) {
        Value pair = value_list(m, KIND_TUPLE);
        list_push(m, pair.list, a->at[0].dict->at[i].key);
        list_push(m, pair.list, a->at[0].dict->at[i].value);
        list_push(m, made.list, pair);
    }
    return made;
}

/* ---- items by attribute ---- */

/* Converts a component of a path to an integer if it consists of digits. Otherwise, returns it as a string. */
static Value path_part(Value part) {
    int64_t i = 0;
    for (size_t k = 0; k < part.n; k++) {
        if (part.s[k] < '0' || part.s[k] > '9' || k == 9) return part;
        i = i * 10 + (part.s[k] - '0');
    }
    return part.n ? value_int(i) : part;
}

/* Returns the value at a path: a string such as "function.name", or an index. Replaces every undefined value on the
 * path with the fallback, unless the fallback is VALUE_MISSING. */
static Value path_or(Machine *m, Value v, Value path, Value fallback) {
    if (path.type != VALUE_STRING) {
        if (given(path)) v = access_item(m, v, path);
        return v.type == VALUE_UNDEFINED && fallback.type != VALUE_MISSING ? fallback : v;
    }
    for (size_t begin = 0; begin <= path.n && !m->err.code;) {
        const char *dot = memchr(path.s + begin, '.', path.n - begin);
        const size_t n = dot ? (size_t)(dot - path.s) - begin : path.n - begin;
        v = access_item(m, v, path_part(value_view(path.s + begin, n)));
        if (v.type == VALUE_UNDEFINED && fallback.type != VALUE_MISSING) v = fallback;
        begin += n + 1;
    }
    return v;
}

static Value at_path(Machine *m, Value v, Value path) { return path_or(m, v, path, (Value){0}); }

/* Returns the arguments for a call on an item: the item, then the arguments from `from` on. */
static CallArgs after_item(Machine *m, const CallArgs *a, size_t from) {
    const size_t n = a->n > from ? a->n - from : 0;
    Value *at = machine_take(m, (n + 1) * sizeof *at);
    for (size_t i = 0; at && i < n; i++) at[1 + i] = a->at[from + i];
    return (CallArgs){.at = at, .n = n + 1, .names = a->names};
}

static Value argument(const CallArgs *a, size_t i, const char *name) {
    if (i < a->n) return a->at[i];
    for (size_t k = 0; name && a->names && k < a->names->n; k++)
        if (value_is(a->names->at[k].key, name)) return a->names->at[k].value;
    return (Value){0};
}

static Value map(Machine *m, const CallArgs *a) {
    const Value path = argument(a, 2, "attribute"), fallback = argument(a, 3, "default"),
                filter = argument(a, 1, NULL);
    const List *from = value_items(m, argument(a, 0, NULL));
    Value made = value_list(m, KIND_ITERATOR);
    const bool by_attribute = a->n == 1 && path.type != VALUE_MISSING;
    if (!by_attribute && filter.type != VALUE_STRING)
        machine_fail(m, "map needs the name of a filter, or attribute='name'");
    CallArgs one = after_item(m, a, 2);
    for (size_t i = 0; i < from->n && machine_spend(m, 1); i++) {
        if (!by_attribute) *(Value *)one.at = from->at[i];
        list_push(m, made.list,
                  by_attribute ? path_or(m, from->at[i], path, fallback) : filter_apply(m, filter, &one));
    }
    return made;
}

/* Implements select, reject, selectattr and rejectattr. For select and reject, `path` is VALUE_MISSING.
 * `test` is the index of the argument that names the test. */
static Value filtered(Machine *m, const CallArgs *a, Value path, size_t test, bool wanted) {
    const List *from = value_items(m, argument(a, 0, NULL));
    Value made = value_list(m, KIND_ITERATOR);
    const Value name = argument(a, test, NULL);
    if (name.type != VALUE_MISSING && name.type != VALUE_STRING)
        machine_fail(m, "the name of a test must be a string");
    CallArgs one = after_item(m, a, test + 1);
    for (size_t i = 0; i < from->n && machine_spend(m, 1); i++) {
        const Value v = at_path(m, from->at[i], path);
        *(Value *)one.at = v;
        if (m->err.code) break;
        const bool passes = name.type == VALUE_MISSING ? value_true(v) : test_apply(m, name, &one);
        if (passes == wanted) list_push(m, made.list, from->at[i]);
    }
    return made;
}

static Value selected(Machine *m, const CallArgs *a) { return filtered(m, a, (Value){0}, 1, true); }
static Value rejected(Machine *m, const CallArgs *a) { return filtered(m, a, (Value){0}, 1, false); }

static Value filtered_by_attribute(Machine *m, const CallArgs *a, bool wanted) {
    if (a->n < 2) machine_fail(m, "selectattr and rejectattr need the name of an attribute");
    return m->err.code ? UNDEFINED : filtered(m, a, a->at[1], 2, wanted);
}

static Value select_by_attribute(Machine *m, const CallArgs *a) { return filtered_by_attribute(m, a, true); }
static Value reject_by_attribute(Machine *m, const CallArgs *a) { return filtered_by_attribute(m, a, false); }

static Value join(Machine *m, const CallArgs *a) {
    Value between = a->at[1].type == VALUE_MISSING ? value_view("", 0) : value_text(m, a->at[1]);
    const List *from = value_items(m, a->at[0]);
    if (!given(a->at[2])) return m->err.code ? UNDEFINED : string_joined(m, between, from);
    Value parts = value_list(m, KIND_LIST);
    for (size_t i = 0; i < from->n && machine_spend(m, 1); i++)
        list_push(m, parts.list, at_path(m, from->at[i], a->at[2]));
    return m->err.code ? UNDEFINED : string_joined(m, between, parts.list);
}

static Value sum(Machine *m, const CallArgs *a) {
    const List *from = value_items(m, a->at[0]);
    Value total = a->at[2].type == VALUE_MISSING ? value_int(0) : a->at[2];
    for (size_t i = 0; i < from->n && machine_spend(m, 1); i++)
        total = operator_binary(m, OP_ADD, total, at_path(m, from->at[i], a->at[1]));
    return total;
}

/* ---- order ---- */

/* Returns the attribute by which an item is compared, converted to lower case unless with_case is set. */
static Value sort_key(Machine *m, Value v, Value path, bool with_case) {
    v = at_path(m, v, path);
    return v.type == VALUE_STRING && !with_case ? string_case(m, v, CASE_LOWER) : v;
}

/* Returns the key for the filter `sort`: a list of the values of the comma-separated attributes. A list can be compared
 * with an equal list even if both contain undefined values. */
static Value sort_keys(Machine *m, Value v, Value path, bool with_case) {
    Value keys = value_list(m, KIND_LIST);
    if (path.type != VALUE_STRING) {
        list_push(m, keys.list, sort_key(m, v, path, with_case));
        return keys;
    }
    for (size_t begin = 0; begin <= path.n && !m->err.code;) {
        const char *comma = memchr(path.s + begin, ',', path.n - begin);
        const size_t n = comma ? (size_t)(comma - path.s) - begin : path.n - begin;
        list_push(m, keys.list, sort_key(m, v, value_view(path.s + begin, n), with_case));
        begin += n + 1;
    }
    return keys;
}

/* Sorts items by keys with a stable merge sort. `at` and `spare` each hold n pairs. */
static void merge_sort(Machine *m, Pair *at, Pair *spare, size_t n, bool down) {
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t begin = 0; begin < n && machine_spend(m, 1); begin += 2 * width) {
            const size_t middle = begin + width < n ? begin + width : n,
                         end = middle + width < n ? middle + width : n;
            for (size_t i = begin, k = middle, to = begin; to < end; to++) {
                bool left = k == end;
                if (i < middle && k < end) {
                    const int order = value_order(m, at[k].key, at[i].key);
                    left = down ? order <= 0 : order >= 0;
                }
                spare[to] = left ? at[i++] : at[k++];
            }
        }
        memcpy(at, spare, n * sizeof *at);
    }
}

/* Returns the sorted items. */
static Pair *sorted(Machine *m, const List *from, Value key(Machine *, Value, Value, bool), Value path,
                    bool with_case, bool down) {
    Pair *at = machine_take(m, (from->n + 1) * sizeof *at),
         *spare = machine_take(m, (from->n + 1) * sizeof *at);
    for (size_t i = 0; at && i < from->n; i++)
        at[i] = (Pair){key(m, from->at[i], path, with_case), from->at[i]};
    if (m->err.code) return NULL;
    merge_sort(m, at, spare, from->n, down);
    return at;
}

static Value sort(Machine *m, const CallArgs *a) {
    const List *from = value_items(m, a->at[0]);
    const Pair *at =
        sorted(m, from, sort_keys, a->at[3], flag(a->at[2], false), integer(m, a->at[1], 0) != 0);
    Value made = value_list(m, KIND_LIST);
    for (size_t i = 0; at && i < from->n && !m->err.code; i++) list_push(m, made.list, at[i].value);
    return made;
}

static Value dictsort(Machine *m, const CallArgs *a) {
    const bool by_value = value_is(a->at[2], "value");
    if (a->at[0].type != VALUE_DICT) value_fail_type(m, a->at[0], "dictsort needs a dict");
    if (!by_value && a->at[2].type != VALUE_MISSING && !value_is(a->at[2], "key"))
        machine_fail(m, "dictsort sorts by 'key' or 'value'");
    if (m->err.code) return UNDEFINED;
    const List *from = value_items(m, items(m, a));
    const Pair *at =
        sorted(m, from, sort_key, value_int(by_value), flag(a->at[1], false), integer(m, a->at[3], 0) != 0);
    Value made = value_list(m, KIND_LIST);
    for (size_t i = 0; at && i < from->n && !m->err.code; i++) list_push(m, made.list, at[i].value);
    return made;
}

static Value unique(Machine *m, const CallArgs *a) {
    const List *from = value_items(m, a->at[0]);
    Value made = value_list(m, KIND_ITERATOR), seen = value_dict(m);
    for (size_t i = 0; i < from->n && machine_spend(m, 1); i++) {
        const Value key = sort_key(m, from->at[i], a->at[2], flag(a->at[1], false));
        if (m->err.code || dict_get(m, seen.dict, key)) continue;
        dict_set(m, seen.dict, key, value_none());
        list_push(m, made.list, from->at[i]);
    }
    return made;
}

static Value extreme(Machine *m, const CallArgs *a, int sign) {
    const List *from = value_items(m, a->at[0]);
    Value best = UNDEFINED, best_key = UNDEFINED;
    for (size_t i = 0; i < from->n && machine_spend(m, 1); i++) {
        const Value key = sort_key(m, from->at[i], a->at[2], flag(a->at[1], false));
        if (i && sign * value_order(m, key, best_key) <= 0) continue;
        best = from->at[i], best_key = key;
    }
    return best;
}

static Value least(Machine *m, const CallArgs *a) { return extreme(m, a, -1); }
static Value most(Machine *m, const CallArgs *a) { return extreme(m, a, 1); }

const Builtin CHAT_FILTERS[] = {
    {"abs", absolute, 1, "x"},
    {"capitalize", capitalize, 1, "s"},
    {"count", length, 1, "obj"},
    {"d", default_value, 1, "value default_value boolean"},
    {"default", default_value, 1, "value default_value boolean"},
    {"dictsort", dictsort, 1, "value case_sensitive by reverse"},
    {"e", escape, 1, "s"},
    {"escape", escape, 1, "s"},
    {"first", first, 1, "seq"},
    {"float", to_float, 1, "value default"},
    {"format", format, 1, NULL},
    {"indent", indent, 1, "s width first blank"},
    {"int", to_int, 1, "value default base"},
    {"items", items, 1, "value"},
    {"join", join, 1, "value d attribute"},
    {"last", last, 1, "seq"},
    {"length", length, 1, "obj"},
    {"list", to_list, 1, "value"},
    {"lower", lower, 1, "s"},
    {"map", map, 1, NULL},
    {"max", most, 1, "value case_sensitive attribute"},
    {"min", least, 1, "value case_sensitive attribute"},
    {"reject", rejected, 1, NULL},
    {"rejectattr", reject_by_attribute, 1, NULL},
    {"replace", replace, 3, "s old new count"},
    {"reverse", reverse, 1, "value"},
    {"round", round_number, 1, "value precision method"},
    {"safe", safe, 1, "value"},
    {"select", selected, 1, NULL},
    {"selectattr", select_by_attribute, 1, NULL},
    {"sort", sort, 1, "value reverse case_sensitive attribute"},
    {"string", to_string, 1, "object"},
    {"sum", sum, 1, "iterable attribute start"},
    {"title", title, 1, "s"},
    {"tojson", to_json, 1, "x ensure_ascii indent separators sort_keys"},
    {"trim", trim, 1, "value chars"},
    {"unique", unique, 1, "value case_sensitive attribute"},
    {"upper", upper, 1, "s"},
    {NULL, NULL, 0, NULL},
};
