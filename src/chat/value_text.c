/* Converts values to text as Python's str(), repr() and json.dumps() do. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <unicode/uchar.h>

#include "base/json_text.h"
#include "base/utf8.h"
#include "chat/value.h"

static void print_float(Machine *m, double f, const char *const names[3], Str *out) {
    if (isfinite(f)) {
        if (machine_spend(m, 20) && machine_reserve(m, 24)) json_print_real(out, f);
    } else
        machine_puts(m, out, names[isnan(f) ? 0 : f > 0 ? 1 : 2]);
}

static void print_int(Machine *m, int64_t i, Str *out) {
    if (machine_reserve(m, 20)) str_printf(out, "%" PRId64, i);
}

static const char *const PYTHON[] = {"nan", "inf", "-inf"}, *const JSON[] = {"NaN", "Infinity", "-Infinity"};

void value_print(Machine *m, Value v, Str *out) {
    if (v.type == VALUE_STRING || v.type == VALUE_MARKUP)
        machine_add(m, out, v.s, v.n);
    else if (v.type != VALUE_UNDEFINED)
        value_repr(m, v, out);
}

Value value_text(Machine *m, Value v) {
    if (v.type == VALUE_STRING) return v;
    Str text = {0};
    value_print(m, v, &text);
    return value_take(m, &text);
}

static bool is_printable(uint32_t c) {
    const int type = u_charType((UChar32)c);
    return c == ' ' || !(type == U_CONTROL_CHAR || type == U_FORMAT_CHAR || type == U_SURROGATE ||
                         type == U_PRIVATE_USE_CHAR || type == U_UNASSIGNED || type == U_LINE_SEPARATOR ||
                         type == U_PARAGRAPH_SEPARATOR || type == U_SPACE_SEPARATOR);
}

static void repr_string(Machine *m, Value v, Str *out) {
    const bool twice = memchr(v.s, '\'', v.n) && !memchr(v.s, '"', v.n);
    const char quote = twice ? '"' : '\'';
    machine_add(m, out, &quote, 1);
    for (size_t i = 0, n; i < v.n && machine_reserve(m, 10); i += n) {
        uint32_t c;
        n = utf8_next(v.s + i, &c);
        if (c == (uint32_t)quote || c == '\\')
            str_printf(out, "\\%c", (char)c);
        else if (c == '\n' || c == '\r' || c == '\t')
            str_printf(out, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (is_printable(c))
            str_add(out, v.s + i, n);
        else
            str_printf(out, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
    }
    machine_add(m, out, &quote, 1);
}

static void repr_dict(Machine *m, const Dict *dict, Str *out) {
    if (!machine_enter(m)) return;
    machine_puts(m, out, "{");
    for (size_t i = 0; i < dict->n && !m->err.code; i++) {
        if (i) machine_puts(m, out, ", ");
        value_repr(m, dict->at[i].key, out);
        machine_puts(m, out, ": ");
        value_repr(m, dict->at[i].value, out);
    }
    machine_puts(m, out, "}");
    machine_leave(m);
}

static void repr_list(Machine *m, const List *list, Str *out) {
    if (list->kind > KIND_TUPLE) {
        machine_fail(m, "%s has no text; use the filter 'list' or 'join' first",
                     value_type_name((Value){.type = VALUE_LIST, .list = (List *)list}));
        return;
    }
    if (!machine_enter(m)) return;
    const bool tuple = list->kind == KIND_TUPLE;
    machine_puts(m, out, tuple ? "(" : "[");
    for (size_t i = 0; i < list->n && !m->err.code; i++) {
        if (i) machine_puts(m, out, ", ");
        value_repr(m, list->at[i], out);
    }
    machine_puts(m, out, !tuple ? "]" : list->n == 1 ? ",)" : ")");
    machine_leave(m);
}

void value_repr(Machine *m, Value v, Str *out) {
    if (!machine_spend(m, 1)) return;
    switch (v.type) {
    case VALUE_UNDEFINED:
        machine_puts(m, out, "Undefined");
        break;
    case VALUE_NONE:
        machine_puts(m, out, "None");
        break;
    case VALUE_BOOL:
        machine_puts(m, out, v.b ? "True" : "False");
        break;
    case VALUE_INT:
        print_int(m, v.i, out);
        break;
    case VALUE_FLOAT:
        print_float(m, v.f, PYTHON, out);
        break;
    case VALUE_STRING:
        repr_string(m, v, out);
        break;
    case VALUE_LIST:
        repr_list(m, v.list, out);
        break;
    case VALUE_DICT:
        repr_dict(m, v.dict, out);
        break;
    case VALUE_NAMESPACE:
        machine_puts(m, out, "<Namespace ");
        repr_dict(m, v.dict, out);
        machine_puts(m, out, ">");
        break;
    default:
        machine_fail(m, "%s has no text; call it or print one of its attributes", value_type_name(v));
    }
}

void value_escape(Machine *m, Value v, Str *out) {
    static const char *const NAMES[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
    const Value text = value_text(m, v);
    for (size_t i = 0; i < text.n && !m->err.code; i++) {
        const char *at = text.s[i] ? strchr("&<>\"'", text.s[i]) : NULL;
        if (at)
            machine_puts(m, out, NAMES[at - strchr("&<>\"'", '&')]);
        else
            machine_add(m, out, text.s + i, 1);
    }
}

/* ---- JSON ---- */

static void json_string_text(Machine *m, Value v, bool ascii, Str *out) {
    static const char SHORT[] =
        "\"\"\\\\\bb\ff\nn\rr\tt"; /* pairs of a character and the letter that escapes it */
    machine_puts(m, out, "\"");
    for (size_t i = 0, n; i < v.n && machine_reserve(m, 12); i += n) {
        uint32_t c;
        n = utf8_next(v.s + i, &c);
        const char *pair = NULL;
        for (int k = 0; SHORT[k]; k += 2)
            if ((uint32_t)SHORT[k] == c) pair = SHORT + k;
        if (pair)
            str_printf(out, "\\%c", pair[1]);
        else if (c < 0x20 || (ascii && c >= 0x7f && c < 0x10000))
            str_printf(out, "\\u%04x", c);
        else if (ascii && c >= 0x10000)
            str_printf(out, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10), 0xdc00 + (c & 0x3ff));
        else
            str_add(out, v.s + i, n);
    }
    machine_puts(m, out, "\"");
}

static void new_line(Machine *m, const JsonForm *form, int depth, Str *out) {
    if (form->indent.type == VALUE_NONE) return;
    machine_puts(m, out, "\n");
    for (int i = 0; i < depth; i++) {
        if (form->indent.type == VALUE_STRING)
            machine_add(m, out, form->indent.s, form->indent.n);
        else
            for (int64_t k = 0; k < form->indent.i && machine_spend(m, 1); k++) machine_puts(m, out, " ");
    }
}

static void json_key(Machine *m, Value key, const JsonForm *form, Str *out) {
    Str text = {0};
    if (key.type != VALUE_STRING && (key.type < VALUE_NONE || key.type > VALUE_FLOAT))
        machine_fail(m, "%s cannot be a key in JSON; use a string", value_type_name(key));
    else if (key.type != VALUE_STRING) {
        value_json(m, key, form, 0, &text);
        key = value_take(m, &text);
    }
    if (!m->err.code) json_string_text(m, key, form->ascii, out);
}

/* Sorts the pairs by their keys with an insertion sort, and counts the comparisons as work. */
static const Pair *sorted(Machine *m, const Dict *dict) {
    Pair *at = machine_take(m, (dict->n + 1) * sizeof *at);
    for (size_t i = 0; at && i < dict->n; i++) {
        size_t k = i;
        for (; k && !m->err.code && value_order(m, dict->at[i].key, at[k - 1].key) < 0; k--)
            at[k] = at[k - 1];
        at[k] = dict->at[i];
    }
    return at;
}

static void json_dict(Machine *m, const Dict *dict, const JsonForm *form, int depth, Str *out) {
    const Pair *at = form->sorted ? sorted(m, dict) : dict->at;
    machine_puts(m, out, "{");
    for (size_t i = 0; i < dict->n && !m->err.code; i++) {
        if (i) machine_add(m, out, form->comma.s, form->comma.n);
        new_line(m, form, depth + 1, out);
        json_key(m, at[i].key, form, out);
        machine_add(m, out, form->colon.s, form->colon.n);
        value_json(m, at[i].value, form, depth + 1, out);
    }
    if (dict->n) new_line(m, form, depth, out);
    machine_puts(m, out, "}");
}

static void json_list(Machine *m, const List *list, const JsonForm *form, int depth, Str *out) {
    machine_puts(m, out, "[");
    for (size_t i = 0; i < list->n && !m->err.code; i++) {
        if (i) machine_add(m, out, form->comma.s, form->comma.n);
        new_line(m, form, depth + 1, out);
        value_json(m, list->at[i], form, depth + 1, out);
    }
    if (list->n) new_line(m, form, depth, out);
    machine_puts(m, out, "]");
}

void value_json(Machine *m, Value v, const JsonForm *form, int depth, Str *out) {
    if (!machine_enter(m)) return;
    if (v.type == VALUE_STRING || v.type == VALUE_MARKUP)
        json_string_text(m, v, form->ascii, out);
    else if (v.type == VALUE_NONE)
        machine_puts(m, out, "null");
    else if (v.type == VALUE_BOOL)
        machine_puts(m, out, v.b ? "true" : "false");
    else if (v.type == VALUE_INT)
        print_int(m, v.i, out);
    else if (v.type == VALUE_FLOAT)
        print_float(m, v.f, JSON, out);
    else if (v.type == VALUE_DICT)
        json_dict(m, v.dict, form, depth, out);
    else if (v.type == VALUE_LIST && v.list->kind <= KIND_TUPLE)
        json_list(m, v.list, form, depth, out);
    else if (v.type == VALUE_UNDEFINED)
        machine_fail(m, "an undefined value has no JSON form; test it with 'is defined'");
    else
        machine_fail(m, "%s has no JSON form; use the filter 'list' first", value_type_name(v));
    machine_leave(m);
}
