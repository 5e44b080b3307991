/* Forms for rotary position embeddings. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_text.h"
#include "base/mem.h"
#include "ckpt/hf/form.h"

static bool has_objects(const json_t *in) {
    const char *name;
    json_t *item;
    json_object_foreach((json_t *)in, name, item) {
        if (json_is_object(item)) return true;
    }
    return false;
}

static const char SCALING[] = "rope_scaling", PARAMETERS[] = "rope_parameters", FULL[] = "full_attention",
                  SLIDING[] = "sliding_attention", CHUNKED[] = "chunked_attention",
                  ORIGINAL[] = "original_max_position_embeddings", TEMPERATURE[] = "llama_4_scaling_beta";

/* Returns the object with this key, or NULL if there is none. */
static const json_t *get_object(HfReader *r, const char *key) {
    const json_t *v = hf_member(r, NULL, key);
    if (v && !json_is_object(v)) hf_refuse(r, key, "not an object");
    return v;
}

/* Returns the object with this key, or NULL if the object is absent or empty. Returns NULL and sets an error
 * if the object has separate values for each kind of layer. */
static const json_t *get_flat(HfReader *r, const char *key) {
    const json_t *v = get_object(r, key);
    if (has_objects(v)) hf_refuse(r, key, "but separate values for each kind of layer are not supported");
    return json_object_size(v) ? v : NULL;
}

static const HfRow *find_row(const HfReader *r, int option) {
    int i = 0;
    while (i < r->num_rows && r->rows[i]->option != option) i++;
    return i < r->num_rows ? r->rows[i] : NULL;
}

static bool has_row(const HfReader *r, int option) { return find_row(r, option) != NULL; }

/* Returns whether windowed layers have a separate rotation in this model type. */
static bool has_two_rotations(const HfReader *r) { return has_row(r, OPTION_rope_local_base_freq); }
static bool has_latents(const HfReader *r) { return has_row(r, OPTION_multi_latent_attention); }

/* Returns the object in rope_parameters for this kind of layer. In older files, rope_scaling applies to full-attention
 * layers. */
static const json_t *find_rope_of_kind(HfReader *r, const char *kind, const char **key) {
    const json_t *scaling = get_flat(r, SCALING), *kinds = get_object(r, PARAMETERS), *item;
    const char *name;
    *key = scaling ? SCALING : PARAMETERS;
    if (scaling && kinds) hf_refuse(r, SCALING, "but rope_parameters is also present; remove one of them");
    if (scaling && hf_member(r, scaling, "type") && !hf_member(r, scaling, "rope_type"))
        hf_refuse(r, SCALING, "but transformers reads rope_type, not type, for this type of model");
    json_object_foreach((json_t *)kinds, name, item) {
        if (!json_is_object(item) && !json_is_null(item))
            hf_refuse(r, PARAMETERS, "but this type of model needs an object for each kind of layer in it");
    }
    return !scaling ? kinds ? hf_member(r, kinds, kind) : NULL : kind == FULL ? scaling : NULL;
}

/* Returns the object in the type's SCALED row, or NULL if the type has no SCALED row. */
static const json_t *usual_rope(HfReader *r) {
    const HfRow *row = find_row(r, OPTION_use_rope_scaling);
    if (!r->usual_rope && row && row->form == &hf_form_scaled_by_default)
        r->usual_rope = json_loads(row->word, 0, NULL);
    return r->usual_rope;
}

/* Returns the object that contains the rotation parameters, or NULL if there is none. In transformers,
 * rope_scaling (older files) takes precedence over rope_parameters. An empty object counts as absent. A type
 * may define an object that is used if neither key exists. */
static const json_t *find_rope(HfReader *r, const char **key) {
    if (has_two_rotations(r)) return find_rope_of_kind(r, FULL, key);
    const json_t *scaling = get_flat(r, *key = SCALING);
    if (scaling) return scaling;
    *key = PARAMETERS;
    return hf_member(r, NULL, SCALING) || hf_member(r, NULL, PARAMETERS) ? get_flat(r, PARAMETERS)
                                                                         : usual_rope(r);
}

/* Reads a number from find_rope's object, where it may have another name, or else from the root object. */
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

/* Reads the fraction of rotated channels. If the row's key is missing, reads rotary_dim, the number of rotated
 * channels, instead. */
static void rotary_dim_read(HfReader *r, const HfRow *row) {
    HfRow with = *row;
    if (hf_member(r, NULL, "rotary_dim"))
        with.fallback =
            (double)hf_get_size(r, "rotary_dim", 1) / (double)hf_get_option(r, OPTION_kv_channels);
    rope_number_read(r, &with);
}

/* Reads the number of rotated channels per head. */
static void rotated_channels_read(HfReader *r, const HfRow *row) {
    if (json_is_null(json_object_get(r->root, row->key)))
        hf_refuse(r, row->key, "but transformers cannot run this type of model without it");
    const double width =
        (double)hf_get_option(r, OPTION_hidden_size) / (double)hf_get_option(r, OPTION_num_attention_heads);
    hf_set_real(r, row->option, (double)hf_get_size(r, row->key, (int64_t)row->fallback) / width);
}

static void rotated_channels_write(HfWriter *w, const HfRow *row) {
    hf_put_size(w, row->key, w->config->derived.rotary_dim);
}

static void whole_rotation_read(HfReader *r, const HfRow *row) {
    const char *place;
    const double part = get_rope_number(r, row, &place);
    if (part != 1) hf_refuse(r, place, "but this type of model rotates whole heads");
    hf_set_real(r, row->option, part);
}

/* Like rope_number_read, but reads the number only from the object with the rotation parameters. */
static void inner_rotation_read(HfReader *r, const HfRow *row) {
    const char *place;
    const json_t *in = find_rope(r, &place);
    hf_set_real(r, row->option, in ? hf_get_real(r, in, row->key, row->fallback) : row->fallback);
}

/* Adds the number to the object that the rope_scaling row has written. */
static void inner_rotation_write(HfWriter *w, const HfRow *row) {
    if (w->config->rotary_percent == row->fallback) return;
    if (json_is_null(json_object_get(w->out, SCALING)))
        hf_put(w, SCALING, json_pack("{s:s}", "rope_type", "default"));
    json_object_set_new(json_object_get(w->out, SCALING), row->key, json_real(w->config->rotary_percent));
}

/* ---- layers without rotation ---- */

static int find_rotated_layers(const HfReader *r) {
    int i = 0;
    while (i < r->num_rows && r->rows[i]->form != &hf_form_rotated_layers) i++;
    return i;
}

/* Reads a list that contains a 1 for each layer with rotation. Without a list, every n-th layer has no rotation. */
bool hf_is_rotated(HfReader *r, int64_t i) {
    const int at = find_rotated_layers(r);
    if (at == r->num_rows) return true;
    const HfRow *row = r->rows[at];
    const json_t *list = hf_member(r, NULL, row->key), *flag = json_array_get(list, (size_t)i);
    if (!list) return (i + 1) % hf_get_size(r, "no_rope_layer_interval", (int64_t)row->fallback) != 0;
    if (!json_is_integer(flag)) hf_refuse(r, row->key, "not a list with a 0 or a 1 for each layer");
    return json_integer_value(flag) != 0;
}

static void rotated_layers_read(HfReader *r, const HfRow *row) {
    const int64_t layers = hf_get_layers(r);
    bool *unrotated = mem_zero((size_t)layers, sizeof *unrotated);
    for (int64_t i = 0; i < layers && !r->err.code; i++) unrotated[i] = !hf_is_rotated(r, i);
    hf_set_pattern(r, row->option, unrotated, layers);
    free(unrotated);
}

static void rotated_layers_write(HfWriter *w, const HfRow *row) {
    json_t *list = json_array();
    for (int64_t i = 0; i < w->config->num_layers; i++)
        json_array_append_new(list, json_integer(w->config->derived.layer_rotated[i]));
    hf_put(w, row->key, list);
}

/* Reads Llama 4's attn_temperature_tuning and related numbers. In one released file, the key's value is 4 instead of
 * true. */
static void temperature_read(HfReader *r, const HfRow *row) {
    static const char tuned[] = "attn_temperature_tuning";
    const json_t *flag = hf_member(r, NULL, tuned);
    const double scale = hf_get_real(r, NULL, row->key, row->fallback);
    const int64_t floor = hf_get_size(r, "floor_scale", 8192);
    if (!(json_is_integer(flag) ? json_integer_value(flag) != 0 : hf_get_flag(r, NULL, tuned, true)) ||
        scale == 0)
        return;
    hf_set_real(r, row->option, scale);
    hf_set_size(r, OPTION_no_rope_temperature_floor, floor);
}

static void temperature_write(HfWriter *w, const HfRow *row) {
    const bool tuned = f64_is_set(w->config->no_rope_temperature_scale);
    hf_put_flag(w, "attn_temperature_tuning", tuned);
    if (!tuned) return;
    hf_value_write(w, row);
    hf_put_size(w, "floor_scale", w->config->no_rope_temperature_floor);
}

/* Reads the size of attention chunks. The value null means that there are no chunks. If layer_types exists, either all
 * layers with rotation use chunks, or no layer does. */
static void chunks_read(HfReader *r, const HfRow *row) {
    const json_t *types = hf_member(r, NULL, "layer_types");
    const bool none = json_is_null(json_object_get(r->root, row->key));
    const int64_t size = none ? 0 : hf_get_size(r, row->key, (int64_t)row->fallback),
                  layers = hf_get_layers(r);
    int64_t chunked = 0, wrong = 0;
    for (int64_t i = 0; i < layers && !r->err.code; i++) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        const bool usual = size && hf_is_rotated(r, i);
        if (types && (!type || (strcmp(type, CHUNKED) && strcmp(type, FULL))))
            hf_refuse(r, "layer_types", "not a list with chunked_attention or full_attention for each layer");
        const bool named = type ? !strcmp(type, CHUNKED) : usual;
        chunked += named, wrong += named != usual;
    }
    if (chunked && wrong)
        hf_refuse(r, "layer_types",
                  "but either no layer or exactly the layers with rotation must have chunked_attention");
    if (chunked) hf_set_size(r, row->option, size);
}

static void chunks_write(HfWriter *w, const HfRow *row) {
    if (i64_is_set(w->config->attention_chunk_size))
        hf_value_write(w, row);
    else
        hf_put(w, row->key, json_null());
}

/* ---- scaling ---- */

static void set_scaling_number(HfReader *r, const json_t *in, const char *in_key, const char *key,
                               int option) {
    if (!hf_member(r, in, key)) hf_refuse(r, in_key, "which lacks a number that its rope_type needs");
    hf_set_real(r, option, hf_get_real(r, in, key, 1));
}

/* Returns the original context length, which is the model's context length by default. If config.json gives the
 * length both inside and outside the scaling object, the outer value takes precedence, unless the model has two
 * kinds of rotation. */
static double get_original_length(HfReader *r, const json_t *in) {
    const double positions = (double)hf_get_option(r, OPTION_max_position_embeddings),
                 inside = hf_get_real(r, in, ORIGINAL, positions);
    return has_two_rotations(r) ? inside : hf_get_real(r, NULL, ORIGINAL, inside);
}

static void set_original_length(HfReader *r, const json_t *in, double length, int option) {
    if (!(length >= 1 && length <= config_range(OPTION_max_position_embeddings).high &&
          length == floor(length)))
        hf_refuse_inside(r, hf_member(r, NULL, ORIGINAL) ? NULL : in, ORIGINAL,
                         "not a whole number of positions");
    hf_set_size(r, option, r->err.code ? 1 : (int64_t)length);
}

/* Reads a list of positive numbers into an option. */
static void set_factors(HfReader *r, const json_t *in, const char *in_key, const char *key, int option) {
    const json_t *list = hf_member(r, in, key);
    const size_t n = json_array_size(list);
    size_t i = 0;
    Str text = {0};
    for (double x; i < n && (x = json_number_value(json_array_get(list, i))) > 0; i++) {
        str_puts(&text, i ? " " : "");
        json_print_real(&text, x);
    }
    if (n == 0 || i < n)
        hf_refuse(r, in_key, "without the lists of positive numbers short_factor and long_factor");
    else
        hf_set_text(r, option, text.s);
    str_free(&text);
}

/* Sets the option to attention_factor, or to the value that `factor` implies. If neither key exists, transformers and
 * Isotron derive the value from the lengths. */
static void set_attention_factor(HfReader *r, const json_t *in, const char *in_key, double original) {
    const double stretch = hf_get_real(r, in, "factor", 0),
                 usual = stretch > 1 ? sqrt(1 + log(stretch) / log(original)) : 1,
                 factor = hf_get_real(r, in, "attention_factor", usual);
    const ConfigRange range = config_range(OPTION_rope_attention_factor);
    if (!hf_member(r, in, "factor") && !hf_member(r, in, "attention_factor")) return;
    if (!(factor >= range.low && factor <= range.high))
        hf_refuse(r, in_key, "whose attention factor this model cannot have");
    hf_set_real(r, OPTION_rope_attention_factor, factor);
}

static void set_long_factors(HfReader *r, const json_t *in, const char *in_key, double original) {
    set_factors(r, in, in_key, "short_factor", OPTION_rope_short_factor);
    set_factors(r, in, in_key, "long_factor", OPTION_rope_long_factor);
    set_original_length(r, in, original, OPTION_rope_scaling_original_max_position_embeddings);
}

static void set_long_rope(HfReader *r, const json_t *in, const char *in_key) {
    const double original = get_original_length(r, in);
    set_long_factors(r, in, in_key, original);
    set_attention_factor(r, in, in_key, original);
}

/* Sets the YaRN options. A null factor means max_position_embeddings divided by the original length. In transformers,
 * mscale is read only if mscale_all_dim is also set. Latent attention always scales its scores by mscale_all_dim. */
static void set_yarn(HfReader *r, const json_t *in, const char *in_key) {
    const double positions = (double)hf_get_option(r, OPTION_max_position_embeddings),
                 original = get_original_length(r, in),
                 factor = hf_get_real(r, in, "factor", positions / original),
                 m = hf_get_real(r, in, "mscale", 0), all = hf_get_real(r, in, "mscale_all_dim", 0);
    const bool both = m != 0 && all != 0, alone = !both && all != 0 && has_latents(r);
    if (!json_object_get(in, "factor")) hf_refuse(r, in_key, "which lacks a number that its rope_type needs");
    hf_set_real(r, OPTION_rotary_scaling_factor, factor);
    set_original_length(r, in, original, OPTION_yarn_original_max_position_embeddings);
    hf_set_real(r, OPTION_yarn_beta_fast, hf_get_real(r, in, "beta_fast", 32));
    hf_set_real(r, OPTION_yarn_beta_slow, hf_get_real(r, in, "beta_slow", 1));
    hf_set_flag(r, OPTION_yarn_correction_range_round_to_int, hf_get_flag(r, in, "truncate", true));
    hf_set_real(r, OPTION_mscale, both ? m : 1);
    hf_set_real(r, OPTION_mscale_all_dim, both || alone ? all : 0);
    if (alone || hf_member(r, in, "attention_factor"))
        hf_set_real(r, OPTION_rope_attention_factor,
                    hf_get_real(r, in, "attention_factor", 0.1 * log(fmax(factor, 1)) + 1));
}

static const char *get_rope_type(HfReader *r, const json_t *in) {
    return in ? hf_get_text(r, in, "rope_type", hf_get_text(r, in, "type", "default")) : "default";
}

/* Reads whether layers with rotation normalize their heads without a gain. In transformers, heads are
 * normalized after the rotation, and the normalization cancels the rotation's attention factor. */
static void rotated_norm_read(HfReader *r, const HfRow *row) {
    if (!hf_get_flag(r, NULL, row->key, row->fallback != 0)) return;
    const char *key;
    const json_t *in = find_rope(r, &key);
    const char *type = get_rope_type(r, in);
    if ((!strcmp(type, "yarn") || !strcmp(type, "longrope")) &&
        hf_get_real(r, in, "attention_factor", 0) != 1)
        hf_refuse(r, key,
                  "but a model with use_qk_norm can have this rope_type only with an attention_factor of 1");
    hf_set_flag(r, row->option, true);
    hf_set_flag(r, OPTION_qk_l2_norm_rope_layers_only, true);
}

/* Reads the rotary base for windowed layers, which have no scaling. If a type has no key for this base, only
 * rope_parameters contains the base. */
static void local_base_read(HfReader *r, const HfRow *row) {
    const char *key;
    const json_t *in = find_rope_of_kind(r, SLIDING, &key);
    const double outside = row->key ? hf_get_real(r, NULL, row->key, row->fallback) : row->fallback,
                 base = in ? hf_get_real(r, in, "rope_theta", outside) : outside;
    if (strcmp(get_rope_type(r, in), "default"))
        hf_refuse(r, key, "but positions can only be unscaled (default) in layers with a window");
    if (r->windowed) hf_set_real(r, row->option, base);
}

/* Writes the rotary base for windowed layers. If the type has no key for this base, rope_parameters replaces the keys
 * for both kinds of layers, unless the base is the type's default. */
static void local_base_write(HfWriter *w, const HfRow *row) {
    const double base = w->config->rope_local_base_freq;
    if (!f64_is_set(base) || (!row->key && base == row->fallback)) return;
    if (row->key) return hf_value_write(w, row);
    json_t *full = json_deep_copy(json_object_get(w->out, SCALING));
    if (!json_is_object(full)) full = (json_decref(full), json_pack("{s:s}", "rope_type", "default"));
    json_object_set_new(full, "rope_theta", json_real(w->config->rotary_base));
    json_object_del(w->out, SCALING), json_object_del(w->out, "rope_theta");
    hf_put(w, PARAMETERS,
           json_pack("{s:o, s:{s:s, s:f}}", FULL, full, SLIDING, "rope_type", "default", "rope_theta", base));
}

/* Sets the dynamic NTK options. If a sample is longer than max_position_embeddings, the frequencies depend on the
 * sample's length. */
static void set_dynamic(HfReader *r, const json_t *in, const char *in_key) {
    set_scaling_number(r, in, in_key, "factor", OPTION_rope_dynamic_factor);
    hf_set_size(r, OPTION_rope_scaling_original_max_position_embeddings,
                hf_get_option(r, OPTION_max_position_embeddings));
}

static void set_llama3(HfReader *r, const json_t *in, const char *in_key) {
    hf_set_flag(r, OPTION_use_rope_scaling, true);
    set_scaling_number(r, in, in_key, "factor", OPTION_rope_scaling_factor);
    set_scaling_number(r, in, in_key, "low_freq_factor", OPTION_rope_scaling_low_freq_factor);
    set_scaling_number(r, in, in_key, "high_freq_factor", OPTION_rope_scaling_high_freq_factor);
    set_original_length(r, in, get_original_length(r, in),
                        OPTION_rope_scaling_original_max_position_embeddings);
}

static void set_linear(HfReader *r, const json_t *in, const char *in_key) {
    set_scaling_number(r, in, in_key, "factor", OPTION_rotary_seq_len_interpolation_factor);
}

static void set_default(HfReader *r, const json_t *in, const char *in_key) {
    (void)r, (void)in, (void)in_key;
}

static void set_type(HfReader *r, PositionEmbedding type) {
    const bool latents = has_latents(r);
    hf_set_text(r, OPTION_position_embedding_type,
                PositionEmbedding_spellings[latents ? POSITION_ROPE : type]);
    if (latents)
        hf_set_text(r, OPTION_rope_type,
                    RopeType_spellings[type == POSITION_YARN ? ROPE_TYPE_YARN : ROPE_TYPE_ROPE]);
}

/* Sets the temperature options. In transformers, the number of positions that share a temperature is derived only for
 * scaling types that need it. */
static void set_temperature(HfReader *r, const json_t *in, const char *in_key, const char *type) {
    static const char *const DERIVED[] = {"llama3", "longrope", "yarn"};
    const double scale = hf_get_real(r, in, TEMPERATURE, 0);
    double length = in ? hf_get_real(r, in, ORIGINAL, 0) : 0;
    for (size_t i = 0; i < sizeof DERIVED / sizeof *DERIVED; i++)
        if (!strcmp(type, DERIVED[i])) length = get_original_length(r, in);
    if (!in || !hf_member(r, in, TEMPERATURE) || length == 0)
        hf_refuse(
            r, in_key,
            "but this type of model needs llama_4_scaling_beta and original_max_position_embeddings in it");
    if (scale == 0) return;
    hf_set_real(r, OPTION_rope_temperature_scale, scale);
    set_original_length(r, in, length, OPTION_rope_temperature_floor);
}

/* Sets the scaling options. If `in` is NULL, there is no scaling. */
static void set_scaling(HfReader *r, const json_t *in, const char *key) {
    static const struct {
        const char *type;
        void (*set)(HfReader *, const json_t *in, const char *in_key);
    } TYPES[] = {{"default", set_default}, {"linear", set_linear},      {"dynamic", set_dynamic},
                 {"llama3", set_llama3},   {"longrope", set_long_rope}, {"yarn", set_yarn}};
    const char *type = get_rope_type(r, in);
    set_type(r, strcmp(type, "yarn") ? POSITION_ROPE : POSITION_YARN);
    if (in && has_latents(r) && strcmp(type, "yarn") && strcmp(type, "default") &&
        hf_get_real(r, in, "mscale_all_dim", 0) != 0)
        hf_refuse(r, key, "but this model has mscale_all_dim only with the type yarn");
    if (has_row(r, OPTION_rope_temperature_scale)) set_temperature(r, in, key, type);
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
        if (!strcmp(type, TYPES[i].type)) {
            TYPES[i].set(r, in, key);
            return;
        }
    hf_refuse(r, key,
              "a kind of RoPE scaling that this model cannot have (default, linear, dynamic, llama3, "
              "longrope and yarn are known)");
}

static void rope_scaling_read(HfReader *r, const HfRow *row) {
    (void)row;
    const char *key;
    const json_t *in = find_rope(r, &key);
    set_scaling(r, in, key);
}

/* Reads position_embedding_type. If the key's value is not "rope", the model has no position embeddings. */
static void rope_if_named_read(HfReader *r, const HfRow *row) {
    if (!strcmp(hf_get_text(r, NULL, "position_embedding_type", "none"), "rope"))
        rope_scaling_read(r, row);
    else
        hf_set_text(r, OPTION_position_embedding_type, PositionEmbedding_spellings[POSITION_NONE]);
}

static json_t *factors_json(const TextList *factors) {
    json_t *list = json_array();
    for (int64_t i = 0; i < factors->count; i++)
        json_array_append_new(list, json_real(strtod(factors->at[i], NULL)));
    return list;
}

/* Writes LongRoPE. If the row has a fallback, as for Phi-3, writes the original length outside the object, because
 * older versions of transformers accept only three keys in it. */
static void long_rope_write(HfWriter *w, const HfRow *row) {
    const Config *c = w->config;
    const bool outside = row->fallback != 0;
    const int64_t original = c->rope_scaling_original_max_position_embeddings;
    json_t *scaling =
        json_pack("{s:s, s:o, s:o}", outside ? "type" : "rope_type", "longrope", "short_factor",
                  factors_json(&c->rope_short_factor), "long_factor", factors_json(&c->rope_long_factor));
    if (f64_is_set(c->rope_attention_factor))
        json_object_set_new(scaling, "attention_factor", json_real(c->rope_attention_factor));
    if (!outside) json_object_set_new(scaling, ORIGINAL, json_integer(original));
    hf_put(w, row->key, scaling);
    if (outside) hf_put_size(w, ORIGINAL, original);
}

static void yarn_write(HfWriter *w, const HfRow *row) {
    const Config *c = w->config;
    json_t *scaling = json_pack(
        "{s:s, s:f, s:I, s:f, s:f, s:b}", "rope_type", "yarn", "factor", c->rotary_scaling_factor, ORIGINAL,
        (json_int_t)c->yarn_original_max_position_embeddings, "beta_fast", c->yarn_beta_fast, "beta_slow",
        c->yarn_beta_slow, "truncate", (int)c->yarn_correction_range_round_to_int);
    if (f64_is_set(c->rope_attention_factor) || c->mscale == 0 || c->mscale_all_dim == 0) {
        json_object_set_new(scaling, "attention_factor", json_real(c->derived.rope_amplitude));
        if (c->multi_latent_attention)
            json_object_set_new(scaling, "mscale_all_dim", json_real(c->mscale_all_dim));
    } else {
        json_object_set_new(scaling, "mscale", json_real(c->mscale));
        json_object_set_new(scaling, "mscale_all_dim", json_real(c->mscale_all_dim));
    }
    hf_put(w, row->key, scaling);
}

/* Writes rope_scaling, which both old and new versions of transformers read. */
static void rope_scaling_write(HfWriter *w, const HfRow *row) {
    const Config *c = w->config;
    if (c->rope_short_factor.count)
        long_rope_write(w, row);
    else if (config_is_yarn(c))
        yarn_write(w, row);
    else if (f64_is_set(c->rope_dynamic_factor))
        hf_put(w, row->key,
               json_pack("{s:s, s:f}", "rope_type", "dynamic", "factor", c->rope_dynamic_factor));
    else if (c->use_rope_scaling)
        hf_put(w, row->key,
               json_pack("{s:s, s:f, s:f, s:f, s:I}", "rope_type", "llama3", "factor", c->rope_scaling_factor,
                         "low_freq_factor", c->rope_scaling_low_freq_factor, "high_freq_factor",
                         c->rope_scaling_high_freq_factor, ORIGINAL,
                         (json_int_t)c->rope_scaling_original_max_position_embeddings));
    else if (f64_is_set(c->rotary_seq_len_interpolation_factor))
        hf_put(
            w, row->key,
            json_pack("{s:s, s:f}", "rope_type", "linear", "factor", c->rotary_seq_len_interpolation_factor));
    else
        hf_put(w, row->key, json_null());
}

static void rope_if_named_write(HfWriter *w, const HfRow *row) {
    const bool none = w->config->position_embedding_type == POSITION_NONE;
    hf_put(w, "position_embedding_type", json_string(none ? "nope" : "rope"));
    rope_scaling_write(w, row);
}

/* Returns `alpha` if the scaling is dynamic and contains that key, and 0 otherwise. Hunyuan stretches the base by
 * `alpha` for every length. */
static double get_alpha(HfReader *r, const char **key) {
    const json_t *in = find_rope(r, key);
    return in && !strcmp(get_rope_type(r, in), "dynamic") ? hf_get_real(r, in, "alpha", 0) : 0;
}

static void stretched_base_read(HfReader *r, const HfRow *row) {
    const char *key;
    const double alpha = get_alpha(r, &key);
    if (alpha == 0) return rope_number_read(r, row);
    const double width = (double)hf_get_size(r, "head_dim", HF_REQUIRED),
                 base = get_rope_number(r, row, &key);
    if (!(alpha > 0) || width <= 2) hf_refuse(r, key, "whose alpha this model cannot have");
    hf_set_real(r, row->option, r->err.code ? 1 : base * pow(alpha, width / (width - 2)));
}

static void stretched_scaling_read(HfReader *r, const HfRow *row) {
    const char *key;
    if (get_alpha(r, &key) == 0)
        rope_scaling_read(r, row);
    else
        set_type(r, POSITION_ROPE);
}

static void scaled_by_default_write(HfWriter *w, const HfRow *row) {
    rope_scaling_write(w, row);
    if (json_is_null(json_object_get(w->out, row->key)))
        hf_put(w, PARAMETERS, json_pack("{s:s}", "rope_type", "default"));
}

/* Adds the temperature scale, and the original length if it is missing, to the object that the SCALED row wrote.
 * transformers cannot run these types unless both keys are present. */
static void rope_temperature_write(HfWriter *w, const HfRow *row) {
    const Config *c = w->config;
    const double scale = f64_or(c->rope_temperature_scale, 0);
    json_t *object = json_object_get(w->out, SCALING);
    if (!json_is_object(object)) object = json_object_get(w->out, PARAMETERS);
    json_object_set_new(object, row->key, json_real(scale));
    if (scale != 0 || !json_object_get(object, ORIGINAL))
        json_object_set_new(object, ORIGINAL, json_integer(c->rope_temperature_floor));
}

/* Returns whether the scaling type is LongRoPE, the only one that Phi-3 supports. */
static bool is_long_rope(HfReader *r, const json_t *in, const char *key) {
    const char *type = get_rope_type(r, in);
    const bool is_long = !strcmp(type, "longrope");
    set_type(r, POSITION_ROPE);
    if (!is_long && strcmp(type, "default"))
        hf_refuse(
            r, key,
            "a kind of RoPE scaling that this type of model cannot have (default and longrope are known)");
    return is_long;
}

/* Reads LongRoPE. The original length is read only from outside the object. */
static void long_rope_read(HfReader *r, const HfRow *row) {
    const char *key;
    const json_t *in = find_rope(r, &key);
    if (!is_long_rope(r, in, key)) return;
    const double original = hf_get_real(r, NULL, ORIGINAL, row->fallback);
    set_long_factors(r, in, key, original);
    set_attention_factor(r, in, key, original);
}

/* Reads Phi-3.5-MoE's scaling, which has two attention factors: one for short text and one for long text. */
static void scaled_long_rope_read(HfReader *r, const HfRow *row) {
    (void)row;
    const char *key;
    const json_t *in = find_rope(r, &key);
    const double amplitude = hf_get_real(r, in, "long_mscale", 0);
    const ConfigRange range = config_range(OPTION_rope_attention_factor);
    if (!is_long_rope(r, in, key)) return;
    set_long_factors(r, in, key, get_original_length(r, in));
    if (hf_get_real(r, in, "short_mscale", 0) != amplitude ||
        !(amplitude >= range.low && amplitude <= range.high))
        hf_refuse(r, key, "whose short_mscale and long_mscale must be the same positive number");
    hf_set_real(r, OPTION_rope_attention_factor, amplitude);
}

static void scaled_long_rope_write(HfWriter *w, const HfRow *row) {
    rope_scaling_write(w, row);
    json_t *scaling = json_object_get(w->out, row->key);
    if (!w->config->rope_short_factor.count) return;
    json_object_del(scaling, "attention_factor");
    json_object_set_new(scaling, "short_mscale", json_real(w->config->derived.rope_amplitude));
    json_object_set_new(scaling, "long_mscale", json_real(w->config->derived.rope_amplitude));
}

const HfForm hf_form_rope_number = {rope_number_read, hf_value_write},
             hf_form_rotary_dim = {rotary_dim_read, hf_value_write},
             hf_form_local_base = {local_base_read, local_base_write},
             hf_form_rotated_channels = {rotated_channels_read, rotated_channels_write},
             hf_form_whole_rotation = {whole_rotation_read, hf_value_write},
             hf_form_inner_rotation = {inner_rotation_read, inner_rotation_write},
             hf_form_rope_scaling = {rope_scaling_read, rope_scaling_write},
             hf_form_scaled_by_default = {rope_scaling_read, scaled_by_default_write},
             hf_form_rope_temperature = {NULL, rope_temperature_write},
             hf_form_stretched_base = {stretched_base_read, hf_value_write},
             hf_form_stretched_scaling = {stretched_scaling_read, rope_scaling_write},
             hf_form_rope_if_named = {rope_if_named_read, rope_if_named_write},
             hf_form_rotated_layers = {rotated_layers_read, rotated_layers_write},
             hf_form_rotated_norm = {rotated_norm_read, hf_value_write},
             hf_form_temperature = {temperature_read, temperature_write},
             hf_form_chunks = {chunks_read, chunks_write},
             hf_form_scaled_long_rope = {scaled_long_rope_read, scaled_long_rope_write},
             hf_form_long_rope = {long_rope_read, rope_scaling_write};
