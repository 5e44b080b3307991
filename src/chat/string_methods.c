/* String methods. Positions are counted in characters. */
#include <string.h>

#include <unicode/uchar.h>

#include "base/utf8.h"
#include "chat/call.h"
#include "chat/lexer.h"
#include "chat/strings.h"

/* Returns argument i, which must be a string. An argument of another type is an error. */
static Value text_argument(Machine *m, const CallArgs *a, size_t i) {
    if (a->at[i].type == VALUE_STRING) return a->at[i];
    value_fail_type(m, a->at[i], "a method of a string needs a string");
    return value_view("", 0);
}

static int64_t int_argument(Machine *m, const CallArgs *a, size_t i, int64_t fallback) {
    return value_integer(m, a->at[i], fallback, "a method of a string needs an integer");
}

/* ---- strip, case, replace ---- */

static Value strip_sides(Machine *m, const CallArgs *a, int sides) {
    const bool given = a->at[1].type != VALUE_MISSING && a->at[1].type != VALUE_NONE;
    const Value chars = given ? text_argument(m, a, 1) : value_none();
    return string_strip(m, a->at[0], chars, sides);
}

static Value strip(Machine *m, const CallArgs *a) { return strip_sides(m, a, STRIP_LEFT | STRIP_RIGHT); }
static Value lstrip(Machine *m, const CallArgs *a) { return strip_sides(m, a, STRIP_LEFT); }
static Value rstrip(Machine *m, const CallArgs *a) { return strip_sides(m, a, STRIP_RIGHT); }
static Value lower(Machine *m, const CallArgs *a) { return string_case(m, a->at[0], CASE_LOWER); }
static Value upper(Machine *m, const CallArgs *a) { return string_case(m, a->at[0], CASE_UPPER); }
static Value casefold(Machine *m, const CallArgs *a) { return string_case(m, a->at[0], CASE_FOLD); }
static Value capitalize(Machine *m, const CallArgs *a) { return string_capitalize(m, a->at[0]); }

static Value title(Machine *m, const CallArgs *a) {
    Str out = {0};
    bool cased = false;
    for (size_t i = 0, n; i < a->at[0].n && machine_reserve(m, 4); i += n) {
        uint32_t c;
        n = utf8_next(a->at[0].s + i, &c);
        if (cased)
            utf8_put(&out, (uint32_t)u_tolower((UChar32)c));
        else
            string_put_title(m, c, &out);
        cased = u_hasBinaryProperty((UChar32)c, UCHAR_CASED);
    }
    return value_take(m, &out);
}

static Value replace(Machine *m, const CallArgs *a) {
    const Value old = text_argument(m, a, 1), with = text_argument(m, a, 2);
    const int64_t most = int_argument(m, a, 3, -1);
    return m->err.code ? UNDEFINED : string_replace(m, a->at[0], old, with, most);
}

/* ---- find ---- */

/* Returns the part of the text between two positions, like text[from:to]. */
static Value part(Machine *m, const CallArgs *a, size_t from) {
    const bool whole = a->at[from].type == VALUE_MISSING && a->at[from + 1].type == VALUE_MISSING;
    Value bounds[2];
    for (size_t i = 0; i < 2; i++)
        bounds[i] = a->at[from + i].type == VALUE_MISSING ? value_none() : a->at[from + i];
    return whole ? a->at[0] : access_slice(m, a->at[0], bounds[0], bounds[1], value_none());
}

static bool begins(Value text, Value with) { return text.n >= with.n && !memcmp(text.s, with.s, with.n); }
static bool ends(Value text, Value with) {
    return text.n >= with.n && !memcmp(text.s + text.n - with.n, with.s, with.n);
}

static Value has_affix(Machine *m, const CallArgs *a, bool check(Value, Value)) {
    const Value text = part(m, a, 2);
    if (m->err.code) return UNDEFINED;
    if (!value_is_list(a->at[1], KIND_TUPLE)) return value_bool(check(text, text_argument(m, a, 1)));
    for (size_t i = 0; i < a->at[1].list->n; i++) {
        const CallArgs one = {.at = &a->at[1].list->at[i]};
        if (check(text, text_argument(m, &one, 0))) return value_bool(true);
    }
    return value_bool(false);
}

static Value startswith(Machine *m, const CallArgs *a) { return has_affix(m, a, begins); }
static Value endswith(Machine *m, const CallArgs *a) { return has_affix(m, a, ends); }

static Value removeprefix(Machine *m, const CallArgs *a) {
    const Value text = a->at[0], prefix = text_argument(m, a, 1);
    return begins(text, prefix) ? value_view(text.s + prefix.n, text.n - prefix.n) : text;
}

static Value removesuffix(Machine *m, const CallArgs *a) {
    const Value text = a->at[0], suffix = text_argument(m, a, 1);
    return suffix.n && ends(text, suffix) ? value_view(text.s, text.n - suffix.n) : text;
}

/* Returns the last occurrence, or NULL if there is none. */
static const char *find_last(Machine *m, Value text, Value what) {
    if (what.n > text.n || !machine_spend(m, text.n * (what.n + 1) / 64)) return NULL;
    for (const char *p = text.s + (text.n - what.n);; p--) {
        if (!memcmp(p, what.s, what.n)) return p;
        if (p == text.s) return NULL;
    }
}

static Value find_position(Machine *m, const CallArgs *a, bool last, bool required) {
    const Value what = text_argument(m, a, 1), text = part(m, a, 2);
    if (m->err.code || !machine_spend(m, text.n / 16)) return UNDEFINED;
    const char *at = last     ? find_last(m, text, what)
                     : what.n ? memmem(text.s, text.n, what.s, what.n)
                              : text.s;
    if (!at && required) machine_fail(m, "index: the text does not contain the argument; use find");
    if (!at) return value_int(-1);
    /* The searched slice is a copy, so its offset in the string must be added. For an empty argument, Python returns
     * this offset. */
    int64_t from =
        a->at[2].type == VALUE_MISSING || a->at[2].type == VALUE_NONE ? 0 : int_argument(m, a, 2, 0);
    const int64_t n = value_length(m, a->at[0]);
    if (from < 0) from = from + n < 0 ? 0 : from + n;
    if (from > n) return value_int(-1);
    return value_int(from + (int64_t)utf8_count(text.s, (size_t)(at - text.s)));
}

static Value find(Machine *m, const CallArgs *a) { return find_position(m, a, false, false); }
static Value rfind(Machine *m, const CallArgs *a) { return find_position(m, a, true, false); }
static Value index_of(Machine *m, const CallArgs *a) { return find_position(m, a, false, true); }
static Value rindex_of(Machine *m, const CallArgs *a) { return find_position(m, a, true, true); }

static Value count(Machine *m, const CallArgs *a) {
    const Value what = text_argument(m, a, 1), text = part(m, a, 2);
    int64_t n = 0;
    if (m->err.code || !machine_spend(m, text.n / 16)) return UNDEFINED;
    if (!what.n) return value_int(value_length(m, text) + 1);
    const char *p = text.s, *end = text.s + text.n;
    for (; (p = memmem(p, (size_t)(end - p), what.s, what.n)) && machine_spend(m, 1); p += what.n) n++;
    return value_int(n);
}

/* ---- split and join ---- */

static void split_at_spaces(Machine *m, Value text, int64_t most, List *out) {
    const Value spaces = value_none();
    while (machine_spend(m, 1)) {
        text = string_strip(m, text, spaces, STRIP_LEFT);
        if (!text.n) return;
        size_t n = text.n;
        uint32_t c;
        if (out->n < (size_t)most)
            for (n = 0; n < text.n && machine_spend(m, 1); n += utf8_next(text.s + n, &c)) {
                utf8_next(text.s + n, &c);
                if (lexer_is_space(c)) break;
            }
        else
            n = string_strip(m, text, spaces, STRIP_RIGHT).n;
        list_push(m, out, value_view(text.s, n));
        text = value_view(text.s + n, text.n - n);
    }
}

/* Like split_at_spaces, but splits from the right. The parts are in reverse order. */
static void rsplit_at_spaces(Machine *m, Value text, int64_t most, List *out) {
    const Value spaces = value_none();
    while (machine_spend(m, 1)) {
        text = string_strip(m, text, spaces, STRIP_RIGHT);
        if (!text.n) return;
        size_t begin = 0;
        uint32_t c;
        if (out->n < (size_t)most)
            for (begin = text.n; begin && machine_spend(m, 1); begin = utf8_prev(text.s, begin)) {
                utf8_next(text.s + utf8_prev(text.s, begin), &c);
                if (lexer_is_space(c)) break;
            }
        else
            begin = text.n - string_strip(m, text, spaces, STRIP_LEFT).n;
        list_push(m, out, value_view(text.s + begin, text.n - begin));
        text = value_view(text.s, begin);
    }
}

static void split_at(Machine *m, Value text, Value by, int64_t most, bool right, List *out) {
    while (out->n < (size_t)most && machine_spend(m, 1 + text.n / 64)) {
        const char *at = right ? find_last(m, text, by) : memmem(text.s, text.n, by.s, by.n);
        if (!at) break;
        const size_t before = (size_t)(at - text.s), after = text.n - before - by.n;
        list_push(m, out, right ? value_view(at + by.n, after) : value_view(text.s, before));
        text = right ? value_view(text.s, before) : value_view(at + by.n, after);
    }
    list_push(m, out, text);
}

static Value split_from(Machine *m, const CallArgs *a, bool right) {
    const bool spaces = a->at[1].type == VALUE_MISSING || a->at[1].type == VALUE_NONE;
    const Value by = spaces ? value_none() : text_argument(m, a, 1);
    int64_t most = int_argument(m, a, 2, -1);
    if (!spaces && !by.n) machine_fail(m, "split needs a separator that is not empty");
    Value made = value_list(m, KIND_LIST);
    if (m->err.code) return UNDEFINED;
    if (most < 0) most = INT64_MAX;
    if (!spaces)
        split_at(m, a->at[0], by, most, right, made.list);
    else if (right)
        rsplit_at_spaces(m, a->at[0], most, made.list);
    else
        split_at_spaces(m, a->at[0], most, made.list);
    for (size_t i = 0; right && i < made.list->n / 2; i++) {
        const Value v = made.list->at[i];
        made.list->at[i] = made.list->at[made.list->n - 1 - i];
        made.list->at[made.list->n - 1 - i] = v;
    }
    return made;
}

static Value split(Machine *m, const CallArgs *a) { return split_from(m, a, false); }
static Value rsplit(Machine *m, const CallArgs *a) { return split_from(m, a, true); }

static Value partition_from(Machine *m, const CallArgs *a, bool right) {
    const Value text = a->at[0], by = text_argument(m, a, 1);
    if (!by.n) machine_fail(m, "partition needs a separator that is not empty");
    if (!machine_spend(m, text.n / 16)) return UNDEFINED;
    const char *at = right ? find_last(m, text, by) : memmem(text.s, text.n, by.s, by.n);
    const size_t before = at ? (size_t)(at - text.s) : right ? 0 : text.n, n = at ? by.n : 0;
    Value made = value_list(m, KIND_TUPLE);
    if (m->err.code) return UNDEFINED;
    list_push(m, made.list, value_view(text.s, before));
    list_push(m, made.list, value_view(text.s + before, n));
    list_push(m, made.list, value_view(text.s + before + n, text.n - before - n));
    return made;
}

static Value partition(Machine *m, const CallArgs *a) { return partition_from(m, a, false); }
static Value rpartition(Machine *m, const CallArgs *a) { return partition_from(m, a, true); }

static Value splitlines(Machine *m, const CallArgs *a) {
    return string_lines(m, a->at[0], a->at[1].type != VALUE_MISSING && value_true(a->at[1]));
}

static Value join(Machine *m, const CallArgs *a) {
    const List *items = value_items(m, a->at[1]);
    for (size_t i = 0; i < items->n && !m->err.code; i++)
        if (items->at[i].type != VALUE_STRING)
            machine_fail(m, "join needs strings, not %s; use the filter 'join'",
                         value_type_name(items->at[i]));
    return m->err.code ? UNDEFINED : string_joined(m, a->at[0], items);
}

/* ---- character classes ---- */

static bool is_decimal(uint32_t c) {
    return u_getIntPropertyValue((UChar32)c, UCHAR_NUMERIC_TYPE) == U_NT_DECIMAL;
}
static bool is_digit(uint32_t c) {
    return is_decimal(c) || u_getIntPropertyValue((UChar32)c, UCHAR_NUMERIC_TYPE) == U_NT_DIGIT;
}
static bool is_numeric(uint32_t c) {
    return u_getIntPropertyValue((UChar32)c, UCHAR_NUMERIC_TYPE) != U_NT_NONE;
}
static bool is_alpha(uint32_t c) { return u_isalpha((UChar32)c); }
static bool is_alnum(uint32_t c) { return is_alpha(c) || is_numeric(c); }
static bool is_ascii(uint32_t c) { return c < 0x80; }

static Value all_are(Machine *m, const CallArgs *a, bool check(uint32_t), bool if_empty) {
    const Value text = a->at[0];
    for (size_t i = 0; i < text.n && machine_spend(m, 1);) {
        uint32_t c;
        i += utf8_next(text.s + i, &c);
        if (!check(c)) return value_bool(false);
    }
    return value_bool(text.n || if_empty);
}

static Value all_decimal(Machine *m, const CallArgs *a) { return all_are(m, a, is_decimal, false); }
static Value all_digit(Machine *m, const CallArgs *a) { return all_are(m, a, is_digit, false); }
static Value all_numeric(Machine *m, const CallArgs *a) { return all_are(m, a, is_numeric, false); }
static Value all_alpha(Machine *m, const CallArgs *a) { return all_are(m, a, is_alpha, false); }
static Value all_alnum(Machine *m, const CallArgs *a) { return all_are(m, a, is_alnum, false); }
static Value all_space(Machine *m, const CallArgs *a) { return all_are(m, a, lexer_is_space, false); }
static Value all_ascii(Machine *m, const CallArgs *a) { return all_are(m, a, is_ascii, true); }

/* Returns whether the text has cased letters and all of them have the requested case. */
static Value has_case(Machine *m, const CallArgs *a, UProperty wanted, UProperty other) {
    bool found = false;
    for (size_t i = 0; i < a->at[0].n && machine_spend(m, 1);) {
        uint32_t c;
        i += utf8_next(a->at[0].s + i, &c);
        if (u_hasBinaryProperty((UChar32)c, other) || u_charType((UChar32)c) == U_TITLECASE_LETTER)
            return value_bool(false);
        found |= u_hasBinaryProperty((UChar32)c, wanted);
    }
    return value_bool(found);
}

static Value all_lower(Machine *m, const CallArgs *a) {
    return has_case(m, a, UCHAR_LOWERCASE, UCHAR_UPPERCASE);
}
static Value all_upper(Machine *m, const CallArgs *a) {
    return has_case(m, a, UCHAR_UPPERCASE, UCHAR_LOWERCASE);
}

/* ---- padding ---- */

static void fill(Machine *m, Str *out, Value with, int64_t n) {
    for (; n > 0 && machine_spend(m, 1); n--) machine_add(m, out, with.s, with.n);
}

static Value padded(Machine *m, const CallArgs *a, bool before, bool after) {
    const Value with = a->at[2].type == VALUE_MISSING ? value_view(" ", 1) : text_argument(m, a, 2);
    const int64_t width = int_argument(m, a, 1, 0), missing = width - value_length(m, a->at[0]);
    if (!m->err.code && utf8_count(with.s, with.n) != 1) machine_fail(m, "padding needs one character");
    Str out = {0};
    int64_t left = missing > 0 && before ? missing : 0;
    if (after && left) left = missing / 2 + (missing & width & 1);
    fill(m, &out, with, left);
    machine_add(m, &out, a->at[0].s, a->at[0].n);
    fill(m, &out, with, after ? missing - left : 0);
    return value_take(m, &out);
}

static Value ljust(Machine *m, const CallArgs *a) { return padded(m, a, false, true); }
static Value rjust(Machine *m, const CallArgs *a) { return padded(m, a, true, false); }
static Value center(Machine *m, const CallArgs *a) { return padded(m, a, true, true); }

static Value zfill(Machine *m, const CallArgs *a) {
    const Value text = a->at[0];
    const size_t sign = text.n && (*text.s == '-' || *text.s == '+');
    const int64_t missing = int_argument(m, a, 1, 0) - value_length(m, text);
    Str out = {0};
    machine_add(m, &out, text.s, sign);
    fill(m, &out, value_view("0", 1), missing);
    machine_add(m, &out, text.s + sign, text.n - sign);
    return value_take(m, &out);
}

/* ---- format ---- */

/* Returns the value for a replacement field: {}, {0} or {name}. */
static Value field(Machine *m, const CallArgs *a, Value name, size_t *next) {
    size_t i = 0, digits = 0;
    for (; digits < name.n && digits < 9 && name.s[digits] >= '0' && name.s[digits] <= '9'; digits++)
        i = i * 10 + (size_t)(name.s[digits] - '0');
    if (!name.n) i = (*next)++;
    const Value *found = digits == name.n ? (i + 1 < a->n ? &a->at[i + 1] : NULL)
                         : a->names       ? dict_get_text(m, a->names, name.s, name.n)
                                          : NULL;
    if (!found) machine_fail(m, "format has no argument for {%s}", name.n ? value_quote(name).s : "");
    return found ? *found : UNDEFINED;
}

static Value format(Machine *m, const CallArgs *a) {
    const char *end = a->at[0].s + a->at[0].n;
    Str out = {0};
    size_t next = 0;
    for (const char *p = a->at[0].s; p < end && machine_spend(m, 1); p++) {
        if (*p != '{' && *p != '}')
            machine_add(m, &out, p, 1);
        else if (p + 1 < end && p[1] == *p)
            machine_add(m, &out, p++, 1);
        else {
            const char *close = *p == '{' ? memchr(p, '}', (size_t)(end - p)) : NULL;
            const Value name = value_view(p + 1, close ? (size_t)(close - p) - 1 : 0);
            if (!close || memchr(name.s, ':', name.n) || memchr(name.s, '!', name.n) ||
                memchr(name.s, '{', name.n) || memchr(name.s, '.', name.n) || memchr(name.s, '[', name.n))
                machine_fail(m, "format supports only {}, {0} and {name}; use ~ or the operator %%");
            else
                value_print(m, field(m, a, name, &next), &out);
            p = close ? close : end - 1;
        }
    }
    return value_take(m, &out);
}

const Builtin CHAT_STRING_METHODS[] = {
    {"strip", strip, 1, "self chars"},
    {"lstrip", lstrip, 1, "self chars"},
    {"rstrip", rstrip, 1, "self chars"},
    {"lower", lower, 1, "self"},
    {"upper", upper, 1, "self"},
    {"casefold", casefold, 1, "self"},
    {"capitalize", capitalize, 1, "self"},
    {"title", title, 1, "self"},
    {"replace", replace, 3, "self old new count"},
    {"startswith", startswith, 2, "self prefix start end"},
    {"endswith", endswith, 2, "self suffix start end"},
    {"removeprefix", removeprefix, 2, "self prefix"},
    {"removesuffix", removesuffix, 2, "self suffix"},
    {"find", find, 2, "self sub start end"},
    {"rfind", rfind, 2, "self sub start end"},
    {"index", index_of, 2, "self sub start end"},
    {"rindex", rindex_of, 2, "self sub start end"},
    {"count", count, 2, "self sub start end"},
    {"split", split, 1, "self sep maxsplit"},
    {"rsplit", rsplit, 1, "self sep maxsplit"},
    {"partition", partition, 2, "self sep"},
    {"rpartition", rpartition, 2, "self sep"},
    {"splitlines", splitlines, 1, "self keepends"},
    {"join", join, 2, "self iterable"},
    {"isdecimal", all_decimal, 1, "self"},
    {"isdigit", all_digit, 1, "self"},
    {"isnumeric", all_numeric, 1, "self"},
    {"isalpha", all_alpha, 1, "self"},
    {"isalnum", all_alnum, 1, "self"},
    {"isspace", all_space, 1, "self"},
    {"isascii", all_ascii, 1, "self"},
    {"islower", all_lower, 1, "self"},
    {"isupper", all_upper, 1, "self"},
    {"ljust", ljust, 2, "self width fillchar"},
    {"rjust", rjust, 2, "self width fillchar"},
    {"center", center, 2, "self width fillchar"},
    {"zfill", zfill, 2, "self width"},
    {"format", format, 1, NULL},
    {NULL, NULL, 0, NULL},
};
