#include "chat/strings.h"

#include <string.h>

#include <unicode/ucasemap.h>
#include <unicode/uchar.h>
#include <unicode/ustring.h>

#include "base/utf8.h"
#include "chat/lexer.h"

static bool contains_character(Value chars, const char *s, size_t n, uint32_t c) {
    if (chars.type != VALUE_STRING) return lexer_is_space(c);
    for (size_t i = 0, k; i < chars.n; i += k) {
        uint32_t other;
        k = utf8_next(chars.s + i, &other);
        if (k == n && !memcmp(chars.s + i, s, n)) return true;
    }
    return false;
}

Value string_strip(Machine *m, Value text, Value chars, int sides) {
    size_t begin = 0, end = text.n;
    const size_t cost = chars.type == VALUE_STRING ? chars.n / 8 + 1 : 1;
    uint32_t c;
    while (sides & STRIP_LEFT && begin < end && machine_spend(m, cost)) {
        const size_t n = utf8_next(text.s + begin, &c);
        if (!contains_character(chars, text.s + begin, n, c)) break;
        begin += n;
    }
    while (sides & STRIP_RIGHT && end > begin && machine_spend(m, cost)) {
        const size_t before = utf8_prev(text.s, end), n = utf8_next(text.s + before, &c);
        if (!contains_character(chars, text.s + before, n, c)) break;
        end = before;
    }
    return value_view(text.s + begin, end - begin);
}

Value string_replace(Machine *m, Value text, Value old, Value with, int64_t most) {
    Str out = {0};
    size_t at = 0;
    if (!machine_spend(m, text.n / 16)) return UNDEFINED;
    for (; most && at <= text.n && machine_spend(m, 1); most--) {
        const char *found = old.n ? memmem(text.s + at, text.n - at, old.s, old.n) : text.s + at;
        if (!found) break;
        machine_add(m, &out, text.s + at, (size_t)(found - text.s) - at);
        machine_add(m, &out, with.s, with.n);
        at = (size_t)(found - text.s) + old.n;
        if (old.n) continue;
        uint32_t c;
        const size_t n = at < text.n ? utf8_next(text.s + at, &c) : 1;
        if (at < text.n) machine_add(m, &out, text.s + at, n);
        at += n;
    }
    if (at < text.n) machine_add(m, &out, text.s + at, text.n - at);
    return value_take(m, &out);
}

Value string_case(Machine *m, Value text, StringCase to) {
    /* case conversion makes a character at most three times as long */
    const size_t most = 3 * text.n + 8;
    UErrorCode status = U_ZERO_ERROR;
    UCaseMap *map = text.n < INT32_MAX / 4 ? ucasemap_open("", 0, &status) : NULL;
    char *out = map ? machine_take(m, most) : NULL;
    if (!out) {
        ucasemap_close(map);
        return UNDEFINED;
    }
    int32_t (*const run)(const UCaseMap *, char *, int32_t, const char *, int32_t, UErrorCode *) =
        to == CASE_LOWER   ? ucasemap_utf8ToLower
        : to == CASE_UPPER ? ucasemap_utf8ToUpper
                           : ucasemap_utf8FoldCase;
    const int32_t n = run(map, out, (int32_t)most, text.s, (int32_t)text.n, &status);
    ucasemap_close(map);
    if (U_FAILURE(status)) machine_fail(m, "the case of a text cannot be changed: %s", u_errorName(status));
    return value_view(out, (size_t)n);
}

void string_put_title(Machine *m, uint32_t c, Str *out) {
    UChar from[2], to[8];
    char text[24];
    int32_t n = 0, length = 0;
    UErrorCode status = U_ZERO_ERROR;
    const uint32_t simple = (uint32_t)u_totitle((UChar32)c);
    if (!machine_reserve(m, 4)) return;
    if (simple != c || !u_hasBinaryProperty((UChar32)c, UCHAR_CHANGES_WHEN_TITLECASED)) {
        utf8_put(out, simple);
        return;
    }
    U16_APPEND_UNSAFE(from, n, c); /* the title case of the sharp s, for example, has two characters */
    length = u_strToTitle(to, 8, from, n, NULL, "", &status);
    u_strToUTF8(text, sizeof text, &n, to, length, &status);
    if (U_SUCCESS(status))
        str_add(out, text, (size_t)n);
    else
        machine_fail(m, "the case of a text cannot be changed: %s", u_errorName(status));
}

Value string_capitalize(Machine *m, Value text) {
    if (!text.n) return text;
    uint32_t c;
    const size_t n = utf8_next(text.s, &c);
    Str out = {0};
    string_put_title(m, c, &out);
    /* the whole text, because a sigma's lower case depends on the letters before it */
    const Value first = string_case(m, value_view(text.s, n), CASE_LOWER),
                all = string_case(m, text, CASE_LOWER);
    if (!m->err.code) machine_add(m, &out, all.s + first.n, all.n - first.n);
    return value_take(m, &out);
}

static bool ends_line(uint32_t c) {
    return (c >= '\n' && c <= '\r') || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

Value string_lines(Machine *m, Value text, bool keep_ends) {
    Value made = value_list(m, KIND_LIST);
    size_t begin = 0;
    for (size_t i = 0, n; i < text.n && machine_spend(m, 1);) {
        uint32_t c;
        n = utf8_next(text.s + i, &c);
        if (!ends_line(c)) {
            i += n;
            continue;
        }
        if (c == '\r' && i + 1 < text.n && text.s[i + 1] == '\n') n = 2;
        list_push(m, made.list, value_view(text.s + begin, i - begin + (keep_ends ? n : 0)));
        begin = i += n;
    }
    if (begin < text.n && !m->err.code) list_push(m, made.list, value_view(text.s + begin, text.n - begin));
    return made;
}

Value string_joined(Machine *m, Value between, const List *items) {
    Str out = {0};
    for (size_t i = 0; i < items->n && machine_spend(m, 1); i++) {
        if (i) machine_add(m, &out, between.s, between.n);
        value_print(m, items->at[i], &out);
    }
    return value_take(m, &out);
}
