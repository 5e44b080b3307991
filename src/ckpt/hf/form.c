#include "ckpt/hf/form.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"

/* ---- reading ---- */

void hf_refuse_inside(HfReader *r, const json_t *in, const char *key, const char *why) {
    if (r->err.code) return;
    const json_t *value = json_object_get(in ? in : r->root, key), *item;
    const char *name, *place = NULL;
    json_object_foreach((json_t *)r->root, name, item) {
        if (item == in) place = name;
    }
    char *text = value ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    r->err = err_user("'%s': %s%s%s is %s, %s", r->path, key, place ? " in " : "", place ? place : "",
                      quote_json(text ? text : "missing").s, why);
    free(text);
}

void hf_refuse(HfReader *r, const char *key, const char *why) { hf_refuse_inside(r, NULL, key, why); }

/* Returns a key's second name, or NULL if the key has only one name. */
static const char *alias_of(const HfReader *r, const char *key) {
    for (int i = 0; i < r->num_rows; i++)
        if (r->rows[i]->form == &hf_form_alias && !strcmp(r->rows[i]->word, key)) return r->rows[i]->key;
    return NULL;
}

const json_t *hf_member(const HfReader *r, const json_t *in, const char *key) {
    const json_t *v = json_object_get(in ? in : r->root, key);
    if (!v && !in) v = json_object_get(r->root, alias_of(r, key));
    return json_is_null(v) ? NULL : v;
}

int64_t hf_get_size(HfReader *r, const char *key, int64_t fallback) {
    const json_t *v = hf_member(r, NULL, key);
    if (!v && fallback != HF_REQUIRED) return fallback;
    if (json_is_integer(v) && json_integer_value(v) > 0) return json_integer_value(v);
    hf_refuse(r, key, "not a positive whole number");
    return 1;
}

int64_t hf_get_count(HfReader *r, const char *key, int64_t fallback) {
    const json_t *v = hf_member(r, NULL, key);
    return json_is_integer(v) && json_integer_value(v) == 0 ? 0 : hf_get_size(r, key, fallback);
}

double hf_get_real(HfReader *r, const json_t *in, const char *key, double fallback) {
    const json_t *v = hf_member(r, in, key);
    if (v && !json_is_number(v)) hf_refuse_inside(r, in, key, "not a number");
    return v ? json_number_value(v) : fallback;
}

bool hf_get_flag(HfReader *r, const json_t *in, const char *key, bool fallback) {
    const json_t *v = hf_member(r, in, key);
    const bool is_null = json_is_null(json_object_get(in ? in : r->root, key));
    if (v && !json_is_boolean(v)) hf_refuse_inside(r, in, key, "neither true nor false");
    return v ? json_is_true(v) : fallback && !is_null; /* as in Python, null is false */
}

const char *hf_get_text(HfReader *r, const json_t *in, const char *key, const char *fallback) {
    const json_t *v = hf_member(r, in, key);
    if (v && !json_is_string(v)) hf_refuse_inside(r, in, key, "not a string");
    return v && json_is_string(v) ? json_string_value(v) : fallback;
}

static const HfRow *row_of(const HfReader *r, int option) {
    int i = 0;
    while (i < r->num_rows && r->rows[i]->option != option) i++;
    CHECK(i < r->num_rows, "no key of '%s' is --%s", r->path, CONFIG_ROWS[option].names);
    return r->rows[i];
}

int64_t hf_get_option(HfReader *r, int option) {
    const HfRow *row = row_of(r, option);
    return hf_get_size(r, row->key, (int64_t)row->fallback);
}

int64_t hf_get_multiple(HfReader *r, const HfRow *row, int64_t n, int option) {
    int64_t product;
    if (!__builtin_mul_overflow(n, hf_get_option(r, option), &product) &&
        (double)product <= config_range(row->option).high)
        return product;
    hf_refuse(r, hf_member(r, NULL, row->key) ? row->key : row_of(r, option)->key, "more than is supported");
    return 1;
}

int64_t hf_get_layers(HfReader *r) {
    const int64_t n = hf_get_option(r, OPTION_num_layers);
    if ((double)n > config_range(OPTION_num_layers).high)
        hf_refuse(r, row_of(r, OPTION_num_layers)->key, "more layers than are supported");
    return r->err.code ? 1 : n;
}

void hf_set_text(HfReader *r, int option, const char *value) {
    const Arg *o = &CONFIG_ROWS[option];
    str_printf(r->out, "%.*s = %s\n", (int)arg_name_len(o), o->names, value);
}

void hf_set_pattern(HfReader *r, int option, const bool *layer, int64_t layers) {
    Arena *arena = arena_new();
    hf_set_text(r, option, config_pattern_text(arena, layer, layers));
    arena_free(arena);
}

void hf_set_size(HfReader *r, int option, int64_t v) {
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)v);
    hf_set_text(r, option, text);
}

void hf_set_real(HfReader *r, int option, double v) {
    char text[32];
    snprintf(text, sizeof text, "%.17g", v);
    hf_set_text(r, option, text);
}

/* Returns the option value that sets the field to v. Options such as --disable-bias-linear name the opposite of their
 * field. */
static const char *flag_text(int option, bool v) {
    return v != (CONFIG_ROWS[option].type == ARG_OFF) ? "true" : "false";
}

void hf_set_flag(HfReader *r, int option, bool v) { hf_set_text(r, option, flag_text(option, v)); }

const char *hf_fixed_text(const HfRow *row) {
    return CONFIG_ROWS[row->option].type == ARG_OFF ? flag_text(row->option, !strcmp(row->word, "true"))
                                                    : row->word;
}

/* ---- writing ---- */

void hf_put(HfWriter *w, const char *key, json_t *value) { json_object_set_new(w->out, key, value); }

void hf_put_size(HfWriter *w, const char *key, int64_t v) { hf_put(w, key, json_integer(v)); }

void hf_put_flag(HfWriter *w, const char *key, bool v) { hf_put(w, key, json_boolean(v)); }

/* ---- values ---- */

static void opposite_read(HfReader *r, const HfRow *row) {
    hf_set_flag(r, row->option, !hf_get_flag(r, NULL, row->key, row->fallback != 0));
}

static void real_read(HfReader *r, const HfRow *row) {
    const double value = hf_get_real(r, NULL, row->key, row->fallback);
    const ConfigRange range = config_range(row->option);
    if (!(value >= range.low && value <= range.high))
        hf_refuse(r, row->key, "a number that this model cannot have");
    hf_set_real(r, row->option, value);
}

void hf_value_read(HfReader *r, const HfRow *row) {
    switch (CONFIG_ROWS[row->option].type) {
    case ARG_I64:
        hf_set_size(r, row->option, hf_get_size(r, row->key, (int64_t)row->fallback));
        return;
    case ARG_F64:
        real_read(r, row);
        return;
    default:
        hf_set_flag(r, row->option, hf_get_flag(r, NULL, row->key, row->fallback != 0));
    }
}

void hf_value_write(HfWriter *w, const HfRow *row) {
    const void *value = config_value(w->config, row->option);
    switch (CONFIG_ROWS[row->option].type) {
    case ARG_I64:
        hf_put_size(w, row->key, *(const int64_t *)value);
        return;
    case ARG_F64:
        hf_put(w, row->key, json_real(*(const double *)value));
        return;
    default:
        hf_put_flag(w, row->key, *(const bool *)value);
    }
}

static void opposite_write(HfWriter *w, const HfRow *row) {
    hf_put_flag(w, row->key, !*(const bool *)config_value(w->config, row->option));
}

static void fixed_read(HfReader *r, const HfRow *row) { hf_set_text(r, row->option, hf_fixed_text(row)); }
static void word_write(HfWriter *w, const HfRow *row) {
    hf_put(w, row->key, json_loads(row->word, JSON_DECODE_ANY, NULL));
}

static void token_write(HfWriter *w, const HfRow *row) {
    json_t *id = json_object_get(w->tokens, row->key);
    hf_put(w, row->key, id ? json_incref(id) : json_null());
}

static void known_token_write(HfWriter *w, const HfRow *row) {
    if (json_object_get(w->tokens, row->key)) token_write(w, row);
}

/* ---- keys with one allowed value ---- */

static void required_read(HfReader *r, const HfRow *row) {
    const bool value = row->fallback != 0;
    if (hf_get_flag(r, NULL, row->key, value) != value) hf_refuse(r, row->key, "which is not supported");
}

static void zero_read(HfReader *r, const HfRow *row) {
    if (hf_get_real(r, NULL, row->key, 0) > 0) hf_refuse(r, row->key, row->word);
}

static void must_read(HfReader *r, const HfRow *row) {
    const bool value = row->fallback != 0;
    if (hf_get_flag(r, NULL, row->key, !value) != value) hf_refuse(r, row->key, "which is not supported");
}

static void stated_write(HfWriter *w, const HfRow *row) { hf_put_flag(w, row->key, row->fallback != 0); }

static void refused_read(HfReader *r, const HfRow *row) {
    if (hf_member(r, NULL, row->key)) hf_refuse(r, row->key, row->word);
}

static void synonym_read(HfReader *r, const HfRow *row) {
    const json_t *v = hf_member(r, NULL, row->key), *other = hf_member(r, NULL, row->word);
    if (v && other && !json_equal(v, other)) hf_refuse(r, row->key, "but it contradicts its other name");
    if (v) json_object_set(r->root, row->word, (json_t *)v);
}

static void number_read(HfReader *r, const HfRow *row) {
    if (hf_get_count(r, row->key, (int64_t)row->fallback) != row->choice)
        hf_refuse(r, row->key, "a number that is not supported");
}

static void number_write(HfWriter *w, const HfRow *row) { hf_put_size(w, row->key, row->choice); }

/* Checks that the alias and the key have equal values, because transformers prefers the alias. */
static void alias_read(HfReader *r, const HfRow *row) {
    const json_t *v = hf_member(r, NULL, row->key);
    if (!v || json_equal(v, hf_member(r, NULL, row->word))) return;
    char *why = mem_printf("but it contradicts %s, this type's name for the same value", row->word);
    hf_refuse(r, row->key, why);
    free(why);
}

const HfForm hf_form_value = {hf_value_read, hf_value_write},
             hf_form_opposite = {opposite_read, opposite_write}, hf_form_copy = {NULL, hf_value_write},
             hf_form_text = {NULL, word_write}, hf_form_token = {NULL, token_write},
             hf_form_known_token = {NULL, known_token_write}, hf_form_fixed = {fixed_read, NULL},
             hf_form_lacking = {fixed_read, NULL}, hf_form_required = {required_read, NULL},
             hf_form_stated = {required_read, stated_write}, hf_form_must = {must_read, stated_write},
             hf_form_refused = {refused_read, NULL}, hf_form_zero = {zero_read, NULL},
             hf_form_alias = {alias_read, NULL}, hf_form_synonym = {synonym_read, NULL},
             hf_form_number = {number_read, number_write};
