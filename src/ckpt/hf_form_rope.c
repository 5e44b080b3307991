/* Forms of rotary positions. */
#include <math.h>
#include <string.h>

#include "ckpt/hf_form.h"

static bool has_objects(const json_t *in) {
    const char *name;
    json_t *item;
    json_object_foreach((json_t *)in, name, item) {
        if (json_is_object(item)) return true;
    }
    return false;
}

/* transformers lets rope_scaling, of older files, go before rope_parameters. An empty one counts as none. */
static const json_t *find_rope(HfReader *r, const char **key) {
    static const char *const KEYS[] = {"rope_scaling", "rope_parameters"};
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++) {
        const json_t *v = hf_member(r, NULL, KEYS[i]);
        *key = KEYS[i];
        if (v && !json_is_object(v)) hf_refuse(r, *key, "not an object");
        if (has_objects(v)) hf_refuse(r, *key, "but numbers for each kind of layer cannot be read");
        if (json_object_size(v)) return v;
    }
    return NULL;
}

/* Its place is the object, where it can have a name of its own, or the file; the object's goes first. */
static double get_rope_number(HfReader *r, const HfRow *row, const char **place) {
    const json_t *in = find_rope(r, place);
    const char *inside = row->word ? row->word : row->key;
    const double outside = hf_get_real(r, NULL, row->key, row->fallback);
    if (!in || !hf_member(r, in, inside)) *place = row->key;
    return in ? hf_get_real(r, in, inside, outside) : outside;
}

static void rope_number_read(HfReader *r, const HfRow *row) {
    const char *place;
    hf_set_real(r, row->option, get_rope_number(r, row, &place));
}

static void whole_rotation_read(HfReader *r, const HfRow *row) {
    const char *place;
    const double part = get_rope_number(r, row, &place);
    if (part != 1) hf_refuse(r, place, "but this type of model rotates whole heads");
    hf_set_real(r, row->option, part);
}

/* ---- scaling ---- */

static void set_scaling_number(HfReader *r, const json_t *in, const char *in_key, const char *key,
                               int option) {
    if (!hf_member(r, in, key)) hf_refuse(r, in_key, "without all numbers that its rope_type needs");
    hf_set_real(r, option, hf_get_real(r, in, key, 1));
}

/* Its default is the model's length; a number outside the object goes before the one inside. */
static void set_original_length(HfReader *r, const json_t *in) {
    static const char key[] = "original_max_position_embeddings";
    const double positions = (double)hf_get_option(r, OPTION_max_position_embeddings),
                 length = hf_get_real(r, NULL, key, hf_get_real(r, in, key, positions));
    if (!(length >= 1 && length <= config_range(OPTION_max_position_embeddings).high &&
          length == floor(length)))
        hf_refuse_inside(r, hf_member(r, NULL, key) ? NULL : in, key, "not a whole number of positions");
    hf_set_size(r, OPTION_rope_scaling_original_max_position_embeddings, r->err.code ? 1 : (int64_t)length);
}

static const char *get_rope_type(HfReader *r, const json_t *in) {
    return in ? hf_get_text(r, in, "rope_type", hf_get_text(r, in, "type", "default")) : "default";
}

static void rope_scaling_read(HfReader *r, const HfRow *row) {
    const char *key;
    const json_t *in = find_rope(r, &key);
    const char *type = get_rope_type(r, in);
    if (!strcmp(type, "llama3")) {
        hf_set_flag(r, row->option, true);
        set_scaling_number(r, in, key, "factor", OPTION_rope_scaling_factor);
        set_scaling_number(r, in, key, "low_freq_factor", OPTION_rope_scaling_low_freq_factor);
        set_scaling_number(r, in, key, "high_freq_factor", OPTION_rope_scaling_high_freq_factor);
        set_original_length(r, in);
    } else if (!strcmp(type, "linear")) {
        set_scaling_number(r, in, key, "factor", OPTION_rotary_seq_len_interpolation_factor);
    } else if (strcmp(type, "default")) {
        hf_refuse(
            r, key,
            "a scaling of positions that this model does not have (default, linear and llama3 are known)");
    }
}

/* The spelling that old and new transformers read. */
static void rope_scaling_write(HfWriter *w, const HfRow *row) {
    const Config *c = w->config;
    char low[40], high[40], factor[40];
    if (c->use_rope_scaling)
        str_printf(w->out,
                   ",\n  \"%s\": {\"rope_type\": \"llama3\", \"factor\": %s, \"low_freq_factor\": %s, "
                   "\"high_freq_factor\": %s, \"original_max_position_embeddings\": %lld}",
                   row->key, hf_real(c->rope_scaling_factor, factor),
                   hf_real(c->rope_scaling_low_freq_factor, low),
                   hf_real(c->rope_scaling_high_freq_factor, high),
                   (long long)c->rope_scaling_original_max_position_embeddings);
    else if (f64_is_set(c->rotary_seq_len_interpolation_factor))
        str_printf(w->out, ",\n  \"%s\": {\"rope_type\": \"linear\", \"factor\": %s}", row->key,
                   hf_real(c->rotary_seq_len_interpolation_factor, factor));
    else
        hf_put_text(w, row->key, "null");
}

static void unscaled_rope_read(HfReader *r, const HfRow *row) {
    const char *key;
    const json_t *in = find_rope(r, &key);
    (void)row;
    if (strcmp(get_rope_type(r, in), "default"))
        hf_refuse(r, key, "but of this type of model only positions without scaling (default) can be read");
}

static void unscaled_rope_write(HfWriter *w, const HfRow *row) { hf_put_text(w, row->key, "null"); }

const HfForm hf_form_rope_number = {rope_number_read, hf_value_write},
             hf_form_whole_rotation = {whole_rotation_read, hf_value_write},
             hf_form_rope_scaling = {rope_scaling_read, rope_scaling_write},
             hf_form_unscaled_rope = {unscaled_rope_read, unscaled_rope_write};
