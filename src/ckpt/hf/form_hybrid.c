/* Forms for models with Mamba-2 or Gated DeltaNet layers. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "ckpt/hf/form.h"

/* The names of layers. Files written before version 5 of transformers contain the second name. */
static const struct {
    char letter;
    const char *name, *older;
} LAYERS[] = {{'M', "linear_attention", "mamba"},
              {'*', "full_attention", "attention"},
              {'-', "mlp", "mlp"},
              {'E', "moe", "moe"}};
enum { N_LAYERS = sizeof LAYERS / sizeof *LAYERS };

static char letter_of(const char *name) {
    for (int i = 0; name && i < N_LAYERS; i++)
        if (!strcmp(name, LAYERS[i].name) || !strcmp(name, LAYERS[i].older)) return LAYERS[i].letter;
    return 0;
}

/* Nemotron-H's first files contain a pattern of letters instead of a list. With neither, transformers would use a model
 * of four layers. */
static const char PATTERN[] = "hybrid_override_pattern", EXPERTS[] = "num_local_experts";

static bool nemotron_letters(HfReader *r, const HfRow *row, Str *out) {
    const json_t *names = hf_member(r, NULL, row->key);
    const char *pattern = names ? "" : hf_get_text(r, NULL, PATTERN, "");
    for (size_t i = 0; i < json_array_size(names); i++) {
        const char letter = letter_of(json_string_value(json_array_get(names, i)));
        if (!letter) return false;
        str_add(out, &letter, 1);
    }
    str_puts(out, pattern);
    return out->len && strspn(out->s, "M*-E") == out->len;
}

/* ---- types in which a layer is a Mamba-2 layer or attention, followed by an MLP or by experts ---- */

/* Appends two letters for each layer. */
static void add_pairs(const bool *attention, int64_t layers, char second, Str *out) {
    for (int64_t i = 0; i < layers; i++) str_printf(out, "%c%c", attention[i] ? '*' : 'M', second);
}

/* Reads Bamba's list of layers with attention. */
static bool bamba_letters(HfReader *r, const HfRow *row, Str *out) {
    const int64_t layers = hf_get_layers(r);
    bool *attention = hf_get_listed_layers(r, row->key, layers);
    add_pairs(attention, layers, '-', out);
    free(attention);
    return true;
}

/* Reads Granite's list of layers. Without this list, all layers are Mamba-2 layers. */
static bool granite_letters(HfReader *r, const HfRow *row, Str *out) {
    const json_t *names = hf_member(r, NULL, row->key);
    const int64_t layers = hf_get_layers(r);
    const char second = hf_get_count(r, EXPERTS, 8) ? 'E' : '-';
    bool *attention = mem_zero((size_t)layers, sizeof *attention),
         known = !names || json_array_size(names) == (size_t)layers;
    for (int64_t i = 0; i < layers && names && known; i++) {
        const char letter = letter_of(json_string_value(json_array_get(names, (size_t)i)));
        attention[i] = letter == '*', known = letter == '*' || letter == 'M';
    }
    add_pairs(attention, layers, second, out);
    free(attention);
    return known;
}

/* Reads the layers. A Granite without Mamba-2 layers is an ordinary decoder. */
static void pairs_read(HfReader *r, const HfRow *row) {
    Str letters = {0};
    const bool granite = row->form == &hf_form_attention_layers;
    if (!hf_hybrid_letters(r, row, &letters))
        hf_refuse(r, row->key, "not a list with linear_attention or full_attention for each layer");
    else if (!granite && r->lacks_mamba)
        hf_refuse(r, row->key, "but this type of model needs at least one Mamba-2 layer");
    else if (!r->lacks_mamba)
        hf_set_text(r, row->option, letters.s);
    str_free(&letters);
}

static void attention_indices_write(HfWriter *w, const HfRow *row) {
    const char *letters = w->config->derived.letters;
    json_t *list = json_array();
    for (int64_t i = 0; letters && i < w->config->num_layers; i += 2)
        if (letters[i] == '*') json_array_append_new(list, json_integer(i / 2));
    hf_put(w, row->key, list);
}

static void attention_layers_write(HfWriter *w, const HfRow *row) {
    const char *letters = w->config->derived.letters;
    json_t *names = json_array();
    for (int64_t i = 0; i < w->config->num_layers; i += letters ? 2 : 1)
        json_array_append_new(
            names, json_string(letters && letters[i] == 'M' ? "linear_attention" : "full_attention"));
    hf_put(w, row->key, names);
    if (letters) w->family = HF_GRANITE_MAMBA;
}

static void paired_layers_read(HfReader *r, const HfRow *row) {
    hf_set_size(r, row->option, hf_get_layers(r) * (r->lacks_mamba ? 1 : 2));
}

static void paired_layers_write(HfWriter *w, const HfRow *row) {
    hf_put_size(w, row->key, w->config->num_layers / (w->config->hybrid_layer_pattern ? 2 : 1));
}

/* ---- the letters of all types ---- */

typedef bool Letters(HfReader *, const HfRow *, Str *);

static Letters *letters_of(const HfForm *form) {
    return form == &hf_form_hybrid_layers       ? nemotron_letters
           : form == &hf_form_attention_indices ? bamba_letters
           : form == &hf_form_attention_layers  ? granite_letters
                                                : NULL;
}

const HfRow *hf_hybrid_row(const HfRow *const *rows, int n) {
    for (int i = 0; i < n; i++)
        if (letters_of(rows[i]->form)) return rows[i];
    return NULL;
}

bool hf_hybrid_letters(HfReader *r, const HfRow *row, Str *out) { return letters_of(row->form)(r, row, out); }

static void hybrid_layers_read(HfReader *r, const HfRow *row) {
    Str letters = {0};
    const bool valid = hf_hybrid_letters(r, row, &letters);
    if (!valid && hf_member(r, NULL, PATTERN) && !hf_member(r, NULL, row->key))
        hf_refuse(r, PATTERN, "but only the letters M, *, - and E are supported");
    else if (!valid)
        hf_refuse(r, row->key, "not a list of linear_attention, full_attention, mlp and moe");
    hf_set_size(r, OPTION_num_layers, (int64_t)letters.len);
    hf_set_text(r, row->option, letters.len ? letters.s : "M");
    str_free(&letters);
}

static void hybrid_layers_write(HfWriter *w, const HfRow *row) {
    json_t *names = json_array();
    for (const char *at = w->config->derived.letters; at && *at; at++)
        for (int i = 0; i < N_LAYERS; i++)
            if (LAYERS[i].letter == *at) json_array_append_new(names, json_string(LAYERS[i].name));
    hf_put(w, row->key, names);
}

/* Reads the number of layers of a model that has only Mamba-2 layers. */
static void mamba_layers_read(HfReader *r, const HfRow *row) {
    const int64_t layers = hf_get_layers(r);
    Str letters = {0};
    for (int64_t i = 0; i < layers; i++) str_puts(&letters, "M");
    hf_set_text(r, row->option, letters.s);
    str_free(&letters);
}

/* Reads the epsilon of all norms. Isotron's gated norm has a fixed epsilon, as in Megatron-LM. */
static void mamba_epsilon_read(HfReader *r, const HfRow *row) {
    if (!r->lacks_mamba && hf_get_real(r, NULL, row->key, row->fallback) != 1e-5)
        hf_refuse(r, row->key, "but only 0.00001, the epsilon of Megatron-LM's gated norm, is supported");
    hf_value_read(r, row);
}

/* The upper limit of a step must be infinite. In JSON, infinity is a string (json_text_numbers) or an object. */
static void step_limits_read(HfReader *r, const HfRow *row) {
    const json_t *limits = hf_member(r, NULL, row->key), *low = json_array_get(limits, 0),
                 *high = json_array_get(limits, 1);
    const json_t *named = json_object_get(high, "__float__");
    const char *text = json_string_value(named ? named : high);
    if (!limits)
        hf_set_real(r, row->option, row->fallback);
    else if (json_array_size(limits) != 2 || !json_is_number(low) || !text || strcmp(text, "Infinity"))
        hf_refuse(r, row->key, "not a lower limit and infinity");
    else if (!(json_number_value(low) >= 0 && json_number_value(low) <= config_range(row->option).high))
        hf_refuse(r, row->key, "a number that this model cannot have");
    else
        hf_set_real(r, row->option, json_number_value(low));
}

static void step_limits_write(HfWriter *w, const HfRow *row) {
    hf_put(w, row->key, json_pack("[f,{s:s}]", w->config->mamba_dt_min, "__float__", "Infinity"));
}

/* Checks that all heads together are `expand` times as wide as the hidden state. */
static void expand_read(HfReader *r, const HfRow *row) {
    const int64_t heads = hf_get_option(r, OPTION_mamba_num_heads),
                  width = hf_get_option(r, OPTION_mamba_head_dim), times = hf_get_size(r, row->key, 2),
                  hidden = hf_get_option(r, OPTION_hidden_size);
    int64_t inner, expanded;
    if (__builtin_mul_overflow(heads, width, &inner) || __builtin_mul_overflow(times, hidden, &expanded) ||
        inner != expanded)
        hf_refuse(r, row->key, "but expand * hidden_size is not num_heads * head_dim");
}

static void expand_write(HfWriter *w, const HfRow *row) {
    const Config *c = w->config;
    hf_put_size(w, row->key, c->derived.mamba_heads * c->mamba_head_dim / c->hidden_size);
}

static void mamba_heads_write(HfWriter *w, const HfRow *row) {
    hf_put_size(w, row->key, w->config->derived.mamba_heads);
}

/* Reads the width of a head. The default, auto, means that all heads together are mamba_expand times as wide as the
 * hidden state. */
static void mamba_width_read(HfReader *r, const HfRow *row) {
    const json_t *width = hf_member(r, NULL, row->key);
    const int64_t heads = hf_get_option(r, OPTION_mamba_num_heads);
    int64_t expanded;
    if (__builtin_mul_overflow(hf_get_size(r, "mamba_expand", 2), hf_get_option(r, OPTION_hidden_size),
                               &expanded))
        expanded = 0;
    if (!width || (json_is_string(width) && !strcmp(json_string_value(width), "auto")))
        json_object_set_new(r->root, row->key, json_integer(expanded / heads));
    hf_value_read(r, row);
}

static void silu_read(HfReader *r, const HfRow *row) {
    const char *name = hf_get_text(r, NULL, row->key, "silu");
    if (strcmp(name, "silu") && strcmp(name, "swish"))
        hf_refuse(r, row->key, "but Mamba-2 and Gated DeltaNet layers support only silu");
}

static void silu_write(HfWriter *w, const HfRow *row) { hf_put(w, row->key, json_string("silu")); }

/* Reads which layers are Gated DeltaNet instead of attention. Without a list, all layers except every n-th are. */
static void linear_layers_read(HfReader *r, const HfRow *row) {
    const json_t *names = hf_member(r, NULL, row->key);
    const int64_t layers = hf_get_layers(r),
                  every = names ? 1 : hf_get_size(r, "full_attention_interval", (int64_t)row->fallback);
    bool *linear = mem_zero((size_t)layers, sizeof *linear),
         known = !names || json_array_size(names) == (size_t)layers;
    for (int64_t i = 0; i < layers && known; i++) {
        const char letter = names ? letter_of(json_string_value(json_array_get(names, (size_t)i))) : 0;
        linear[i] = names ? letter == 'M' : (i + 1) % every != 0;
        known = !names || letter == 'M' || letter == '*';
    }
    if (!known) hf_refuse(r, row->key, "not a list with linear_attention or full_attention for each layer");
    hf_set_text(r, OPTION_experimental_attention_variant, "gdn");
    hf_set_pattern(r, row->option, linear, layers);
    free(linear);
}

static void linear_layers_write(HfWriter *w, const HfRow *row) {
    json_t *names = json_array();
    for (int64_t i = 0; i < w->config->num_layers; i++)
        json_array_append_new(
            names, json_string(w->config->derived.layer_linear[i] ? "linear_attention" : "full_attention"));
    hf_put(w, row->key, names);
}

const HfForm hf_form_hybrid_layers = {hybrid_layers_read, hybrid_layers_write},
             hf_form_mamba_layers = {mamba_layers_read, NULL},
             hf_form_paired_layers = {paired_layers_read, paired_layers_write},
             hf_form_attention_indices = {pairs_read, attention_indices_write},
             hf_form_attention_layers = {pairs_read, attention_layers_write},
             hf_form_mamba_width = {mamba_width_read, hf_value_write},
             hf_form_mamba_epsilon = {mamba_epsilon_read, hf_value_write},
             hf_form_step_limits = {step_limits_read, step_limits_write},
             hf_form_expand = {expand_read, expand_write},
             hf_form_mamba_heads = {hf_value_read, mamba_heads_write}, hf_form_silu = {silu_read, silu_write},
             hf_form_linear_layers = {linear_layers_read, linear_layers_write};
