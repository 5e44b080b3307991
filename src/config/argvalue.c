/* Parses and prints option values of all types. */
#include "config/args.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "config/enums.h"

size_t arg_name_len(const Arg *row) { return strcspn(row->names, "|"); }

static bool parse_i64(const char *s, int64_t *out) {
    char *end;
    errno = 0;
    long long v = strtoll(s, &end, 10);
    if (end == s || *end || errno || v == I64_UNSET || isspace((unsigned char)*s)) return false;
    *out = v;
    return true;
}

static bool parse_f64(const char *s, double *out) {
    char *end;
    errno = 0;
    double v = strtod(s, &end);
    const bool underflow = errno == ERANGE && v == 0;
    if (end == s || *end || !isfinite(v) || underflow || isspace((unsigned char)*s)) return false;
    *out = v;
    return true;
}

static bool parse_bool(const char *s, bool *out) {
    *out = !strcmp(s, "true") || !strcmp(s, "True");
    return *out || !strcmp(s, "false") || !strcmp(s, "False");
}

static bool parse_enum(const Arg *row, const char *s, void *field) {
    int choice = enum_find(row->choices, s);
    if (choice < 0) return false;
    memcpy(field, &choice, sizeof choice);
    return true;
}

static bool parse_i64s(I64List *list, Arena *arena, const char *const *words, int64_t n) {
    size_t bytes = 0;
    for (int64_t i = 0; i < n; i++) bytes += strlen(words[i]) + 1;
    I64List found = {arena_alloc(arena, bytes * sizeof(int64_t)), 0};
    for (int64_t i = 0; i < n; i++) {
        char *copy = arena_printf(arena, "%s", words[i]), *rest = NULL;
        for (char *item = strtok_r(copy, ", ()", &rest); item; item = strtok_r(NULL, ", ()", &rest))
            if (!parse_i64(item, &found.at[found.count++])) return false;
    }
    *list = found;
    return found.count > 0;
}

/* Reads a list of strings. An empty word, for example from an unset shell variable, is not valid. */
static bool parse_texts(TextList *list, Arena *arena, const char *const *words, int64_t n) {
    *list = (TextList){arena_alloc(arena, (size_t)n * sizeof *list->at), n};
    for (int64_t i = 0; i < n; i++) {
        if (!*words[i]) return false;
        list->at[i] = arena_printf(arena, "%s", words[i]);
    }
    return n > 0;
}

static bool parse_text(const Arg *row, const char **text, Arena *arena, const char *word) {
    const bool unset = !strcmp(word, "none") && !strcmp(row->fallback, "none") && !row->required;
    *text = unset ? NULL : arena_printf(arena, "%s", word);
    return *word;
}

/* Describes which limit of the option's type the number `word` exceeds. Returns NULL if `word` is within the limits or
 * not a number. */
static const char *exceeded(const Arg *row, const char *word) {
    char *end;
    errno = 0;
    const double x = row->type == ARG_F64 ? strtod(word, &end) : (double)strtoll(word, &end, 10);
    if (errno != ERANGE || end == word || *end) return NULL;
    if (row->type == ARG_I64) return "at most 9223372036854775807";
    return x == 0 ? "at least 4.9e-324" : "at most 1.8e308";
}

static void expectation(const Arg *row, Str *out) {
    switch (row->type) {
    case ARG_FLAG:
    case ARG_OFF:
        str_puts(out, "true or false");
        return;
    case ARG_I64:
        str_puts(out, "a whole number");
        return;
    case ARG_F64:
        str_puts(out, "a number");
        return;
    case ARG_I64S:
        str_puts(out, "whole numbers");
        return;
    case ARG_ENUM:
        str_puts(out, "one of");
        for (int i = 0; row->choices[i]; i++) str_printf(out, "%s %s", i ? "," : "", row->choices[i]);
        return;
    default:
        str_puts(out, "a value");
    }
}

static bool parse(const Arg *row, void *field, Arena *arena, const char *const *words, int64_t n) {
    if (row->type == ARG_TEXTS) return parse_texts(field, arena, words, n);
    if (row->type == ARG_I64S) {
        if (n == 1 && !strcmp(words[0], "none")) return *(I64List *)field = (I64List){0}, true;
        return parse_i64s(field, arena, words, n);
    }
    if (n != 1) return false;
    bool unset = !strcmp(words[0], "none"), on;
    switch (row->type) {
    case ARG_FLAG:
    case ARG_OFF:
        if (!parse_bool(words[0], &on)) return false;
        *(bool *)field = row->type == ARG_FLAG ? on : !on;
        return true;
    case ARG_I64:
        return unset ? *(int64_t *)field = I64_UNSET, true : parse_i64(words[0], field);
    case ARG_F64:
        return unset ? *(double *)field = NAN, true : parse_f64(words[0], field);
    case ARG_ENUM:
        return parse_enum(row, words[0], field);
    case ARG_TEXT:
        return parse_text(row, field, arena, words[0]);
    default:
        return false;
    }
}

bool arg_parse(const Arg *row, void *field, Arena *arena, const char *const *words, int64_t n,
               Str *expected) {
    if (parse(row, field, arena, words, n)) return true;
    const bool number = row->type == ARG_I64 || row->type == ARG_F64;
    const char *limit = number && n == 1 ? exceeded(row, words[0]) : NULL;
    if (limit)
        str_printf(expected, "a number of magnitude %s", limit);
    else
        expectation(row, expected);
    str_puts(expected, ", not ");
    Str all = {0};
    for (int64_t i = 0; i < n && all.len < 100; i++) str_printf(&all, "%s%.100s", i ? " " : "", words[i]);
    str_quote(expected, all.s ? all.s : "", all.len);
    str_free(&all);
    return false;
}

void arg_default(const Arg *row, void *field, Arena *arena) {
    if (row->type == ARG_GROUP) return;
    bool unset = !strcmp(row->fallback, "none");
    if (unset && row->type == ARG_TEXT)
        *(const char **)field = NULL;
    else if (unset && row->type == ARG_TEXTS)
        *(TextList *)field = (TextList){0};
    else if (row->type == ARG_FLAG || row->type == ARG_OFF)
        *(bool *)field = row->type == ARG_OFF;
    else
        CHECK(parse(row, field, arena, &row->fallback, 1), "the default '%s' of --%s", row->fallback,
              row->names);
}

/* Prints a double with as few significant digits as reproduce its value, but at least 6. */
static void print_f64(double v, Str *out) {
    char text[40];
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v) break;
    }
    str_puts(out, text);
}

void arg_print(const Arg *row, const void *field, Str *out) {
    size_t before = out->len;
    int choice;
    switch (row->type) {
    case ARG_GROUP:
        return;
    case ARG_FLAG:
        str_puts(out, *(const bool *)field ? "true" : "false");
        return;
    case ARG_OFF:
        str_puts(out, *(const bool *)field ? "false" : "true");
        return;
    case ARG_I64:
        if (i64_is_set(*(const int64_t *)field)) str_printf(out, "%lld", (long long)*(const int64_t *)field);
        break;
    case ARG_F64:
        if (f64_is_set(*(const double *)field)) print_f64(*(const double *)field, out);
        break;
    case ARG_TEXT:
        if (*(char *const *)field) str_puts(out, *(char *const *)field);
        break;
    case ARG_ENUM:
        memcpy(&choice, field, sizeof choice);
        str_puts(out, row->choices[choice]);
        break;
    case ARG_TEXTS: {
        const TextList *list = field;
        for (int64_t i = 0; i < list->count; i++) str_printf(out, "%s%s", i ? " " : "", list->at[i]);
        break;
    }
    case ARG_I64S: {
        const I64List *list = field;
        for (int64_t i = 0; i < list->count; i++)
            str_printf(out, "%s%lld", i ? " " : "", (long long)list->at[i]);
        break;
    }
    }
    if (out->len == before) str_puts(out, "none");
}

void arg_metavar(const Arg *row, Str *out) {
    switch (row->type) {
    case ARG_GROUP:
    case ARG_FLAG:
    case ARG_OFF:
        return;
    case ARG_I64:
        str_puts(out, "N");
        return;
    case ARG_F64:
        str_puts(out, "NUMBER");
        return;
    case ARG_TEXT:
        str_puts(out, "TEXT");
        return;
    case ARG_TEXTS:
        str_puts(out, "TEXT ...");
        return;
    case ARG_I64S:
        str_puts(out, "N ...");
        return;
    case ARG_ENUM:
        for (int i = 0; row->choices[i]; i++) str_printf(out, "%s%s", i ? "|" : "{", row->choices[i]);
        str_puts(out, "}");
    }
}
