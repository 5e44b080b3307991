/* Writes a run's configuration as JSON, and reads a checkpoint's model options from untrusted JSON. */
#include "config/config.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"

/* Returns a JSON string, or null if s is NULL. Text that is not UTF-8, such as some paths, is converted byte
 * by byte from Latin-1. */
static json_t *text_or_null(const char *s) {
    json_t *text = s ? json_string(s) : json_null();
    if (text) return text;
    Str latin = {0};
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s,
                      two[] = {(unsigned char)(0xC0 | c >> 6), (unsigned char)(0x80 | (c & 0x3F))};
        if (c < 0x80)
            str_add(&latin, s, 1);
        else
            str_add(&latin, two, 2);
    }
    text = json_string(latin.s);
    str_free(&latin);
    return text;
}

static json_t *to_json(const Arg *row, const void *value) {
    json_t *list;
    int choice;
    switch (row->type) {
    case ARG_FLAG:
    case ARG_OFF:
        return json_boolean(*(const bool *)value);
    case ARG_I64:
        return i64_is_set(*(const int64_t *)value) ? json_integer(*(const int64_t *)value) : json_null();
    case ARG_F64:
        return f64_is_set(*(const double *)value) ? json_real(*(const double *)value) : json_null();
    case ARG_TEXT:
        return text_or_null(*(char *const *)value);
    case ARG_ENUM:
        memcpy(&choice, value, sizeof choice);
        return json_string(row->choices[choice]);
    case ARG_TEXTS:
        list = json_array();
        for (int64_t i = 0; i < ((const TextList *)value)->count; i++)
            json_array_append_new(list, text_or_null(((const TextList *)value)->at[i]));
        return list;
    case ARG_I64S:
        list = json_array();
        for (int64_t i = 0; i < ((const I64List *)value)->count; i++)
            json_array_append_new(list, json_integer(((const I64List *)value)->at[i]));
        return list;
    default:
        return NULL;
    }
}

json_t *config_object(const Config *c, unsigned classes) {
    json_t *root = json_object();
    for (int i = 0; i < OPTIONS; i++) {
        if (CONFIG_ROWS[i].type == ARG_GROUP || !(config_option_class(i) & classes)) continue;
        CHECK(!json_object_set_new_nocheck(root, config_field_name(i),
                                           to_json(&CONFIG_ROWS[i], config_value(c, i))),
              "%s has no JSON value", config_field_name(i));
    }
    return root;
}

void config_json(const Config *c, unsigned classes, Str *out) {
    json_t *root = config_object(c, classes);
    char *text = json_dumps(root, JSON_INDENT(2) | JSON_ENSURE_ASCII);
    CHECK(text, "the configuration has no JSON text");
    str_puts(out, text);
    free(text);
    json_decref(root);
}

static bool texts_from_json(const json_t *list, TextList *out, Arena *arena) {
    size_t n = json_array_size(list), i;
    json_t *item;
    out->at = arena_alloc(arena, n * sizeof *out->at);
    out->count = (int64_t)n;
    json_array_foreach(list, i, item) {
        if (!json_is_string(item)) return false;
        out->at[i] = arena_printf(arena, "%s", json_string_value(item));
    }
    return true;
}

static bool i64s_from_json(const json_t *list, I64List *out, Arena *arena) {
    size_t n = json_array_size(list), i;
    json_t *item;
    out->at = arena_alloc(arena, n * sizeof *out->at);
    out->count = (int64_t)n;
    json_array_foreach(list, i, item) {
        if (!json_is_integer(item)) return false;
        out->at[i] = json_integer_value(item);
    }
    return true;
}

static bool from_json(const Arg *row, const json_t *v, void *field, Arena *arena) {
    int choice;
    switch (row->type) {
    case ARG_FLAG:
    case ARG_OFF:
        *(bool *)field = json_is_true(v);
        return json_is_boolean(v);
    case ARG_I64:
        *(int64_t *)field = json_is_null(v) ? I64_UNSET : json_integer_value(v);
        return json_is_integer(v) || json_is_null(v);
    case ARG_F64:
        *(double *)field = json_is_null(v) ? NAN : json_number_value(v);
        return json_is_number(v) || json_is_null(v);
    case ARG_TEXT:
        *(const char **)field = json_is_string(v) ? arena_printf(arena, "%s", json_string_value(v)) : NULL;
        return json_is_string(v) || json_is_null(v);
    case ARG_ENUM:
        choice = json_is_string(v) ? enum_find(row->choices, json_string_value(v)) : -1;
        if (choice < 0) return false;
        memcpy(field, &choice, sizeof choice);
        return true;
    case ARG_TEXTS:
        return json_is_array(v) && texts_from_json(v, field, arena);
    case ARG_I64S:
        return json_is_array(v) && i64s_from_json(v, field, arena);
    default:
        return false;
    }
}

/* Adds a note about a value in the checkpoint that differs from the option that the user gave. */
static void note_difference(const Arg *row, const void *mine, const json_t *theirs, Str *notes) {
    json_t *value = to_json(row, mine);
    if (!json_equal(value, theirs)) {
        char *text = json_dumps(theirs, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
        Str shown = {0};
        arg_print(row, mine, &shown);
        str_printf(notes, "--%.*s is given as %.200s, but the checkpoint has %.200s.\n",
                   (int)arg_name_len(row), row->names, shown.s, text ? text : "another value");
        str_free(&shown);
        free(text);
    }
    json_decref(value);
}

static Err restore(Config *c, Arena *arena, const json_t *root, unsigned classes, Str *notes) {
    for (int i = 0; i < OPTIONS; i++) {
        const Arg *row = &CONFIG_ROWS[i];
        const json_t *v = row->type == ARG_GROUP ? NULL : json_object_get(root, config_field_name(i));
        if (!v || !(config_option_class(i) & classes)) continue;
        if (c->given[i]) {
            note_difference(row, config_value(c, i), v, notes);
        } else if (!from_json(row, v, (char *)c + row->offset, arena)) {
            char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
            Err e = err_user(
                "The stored configuration has %s = %.100s, which is not a valid value for that option: the "
                "checkpoint was not written by this program or is damaged.",
                config_field_name(i), text ? text : "something");
            free(text);
            return e;
        }
    }
    return ERR_OK;
}

Err config_from_json(Config *c, Arena *arena, const char *json, size_t n, unsigned classes, Str *notes) {
    json_error_t error;
    json_t *root = json_loadb(json, n, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        return err_user("The stored configuration is not JSON (line %d: %s): the checkpoint is damaged.",
                        error.line, error.text);
    Config restored = *c; /* a copy, so that *c is unchanged after an error */
    Err e = restore(&restored, arena, root, classes, notes);
    if (!e.code && !json_is_object(root))
        e = err_user("The stored configuration is not a JSON object: the checkpoint is damaged.");
    if (!e.code) *c = restored;
    json_decref(root);
    return e;
}
