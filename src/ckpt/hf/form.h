/* The forms that rows (type.h) can have. A form converts between a row's key in config.json and options. */
#pragma once

#include <jansson.h>

#include "base/err.h"
#include "base/str.h"
#include "ckpt/hf/type.h"
#include "config/config.h"

/* A reader of config.json. A reader keeps the first error, and later reads return their fallback. */
typedef struct HfReader {
    json_t *root;
    const char *path;
    const HfRow *const *rows;
    int num_rows;
    Str *out; /* the resulting lines `name = value` */
    bool
        lacks_mamba; /* whether the file describes a model without Mamba-2 layers, although its type allows them */
    int64_t windowed;   /* number of layers that have a window; set by the WINDOWS row */
    json_t *usual_rope; /* the SCALED row's object; NULL until it is read */
    Err err;
} HfReader;

typedef struct HfWriter {
    const Config *config; /* the result of hf_config_filled */
    const json_t *tokens; /* see tokens.h; NULL if unknown */
    json_t *out;          /* the object of config.json */
    HfFamily family;      /* family for the tensors' names: the type's family, unless a form changes it */
} HfWriter;

/* Two functions: one reads a row, and one writes it. NULL means that there is nothing to read or write. */
struct HfForm {
    void (*read)(HfReader *, const HfRow *);
    void (*write)(HfWriter *, const HfRow *);
};

/* The layers that have a sliding window. */
typedef enum HfWindows {
    HF_WINDOWS_NONE,
    HF_WINDOWS_ALL,       /* all layers have a window if sliding_window is a number */
    HF_WINDOWS_ALTERNATE, /* the layers that layer_types lists; default: layers 0, 2, ... */
    HF_WINDOWS_PERIOD, /* the layers that layer_types lists; default: all except every sliding_window_pattern-th */
    HF_WINDOWS_ROTATED,         /* like PERIOD with period 4; layers without a window have no rotation */
    HF_WINDOWS_ROTATED_OR_NONE, /* like ROTATED; without sliding_window, no layer has a window and all layers
                                   have a rotation */
    HF_WINDOWS_UNROTATED,       /* like LATE; default: the layers that have no rotation */
    HF_WINDOWS_FOURTH,          /* like PERIOD, but the period is always 4 */
    HF_WINDOWS_AFTER_FIRST,     /* like PERIOD, but the first of every 4 layers has full attention */
    HF_WINDOWS_LISTED,          /* the layers that layer_types lists; default: all layers */
    HF_WINDOWS_LAST,     /* like LISTED; default: from max_window_layers on, if sliding_window is a number */
    HF_WINDOWS_SWITCHED, /* like ALL, if use_sliding_window is true */
    HF_WINDOWS_LATE,     /* like LISTED, if use_sliding_window is true; default: from max_window_layers on */
    HF_WINDOWS_EVEN,     /* like LATE; default: layers 0, 2, ... below max_window_layers */
} HfWindows;

extern const HfForm hf_form_value, hf_form_opposite, hf_form_copy, hf_form_text, hf_form_token,
    hf_form_known_token, hf_form_fixed, hf_form_lacking, hf_form_required, hf_form_stated, hf_form_must,
    hf_form_refused, hf_form_zero, hf_form_alias, hf_form_synonym, hf_form_number;
/* Forms for heads, sizes, activations, scores and biases. */
extern const HfForm hf_form_count, hf_form_query_groups, hf_form_own_keys, hf_form_nullable, hf_form_only,
    hf_form_head_size, hf_form_head_size_is_usual, hf_form_hidden_size_divides, hf_form_heads_fill_hidden,
    hf_form_fourfold, hf_form_always_fourfold, hf_form_decoder_layers, hf_form_feed_forward,
    hf_form_positions, hf_form_activation, hf_form_learned_activation, hf_form_gate, hf_form_gemma_gate,
    hf_form_pre_attention_scalar, hf_form_softcap, hf_form_scaled_scores, hf_form_reciprocal,
    hf_form_scaled_head, hf_form_attention_biases, hf_form_both_biases, hf_form_same_rate,
    hf_form_mpt_attention, hf_form_two_norms, hf_form_falcon_layers, hf_form_falcon_heads;
extern const HfForm hf_form_bert_heads, hf_form_classes, hf_form_padding, hf_form_positions_after_padding,
    hf_form_erf_activation;
extern const HfForm hf_form_rope_number, hf_form_rope_temperature, hf_form_rotary_dim, hf_form_local_base,
    hf_form_rotated_channels, hf_form_whole_rotation, hf_form_rope_scaling, hf_form_stretched_base,
    hf_form_stretched_scaling, hf_form_long_rope, hf_form_scaled_long_rope, hf_form_rotated_layers,
    hf_form_windows, hf_form_rotated_norm, hf_form_rope_if_named, hf_form_local_layers, hf_form_chunks,
    hf_form_temperature, hf_form_inner_rotation;
extern const HfForm hf_form_experts, hf_form_expert_width, hf_form_several_experts, hf_form_normalized,
    hf_form_one_for_all, hf_form_quick_gate, hf_form_small_norm_min, hf_form_scaled_by_default,
    hf_form_router_groups, hf_form_best_groups, hf_form_shared_experts, hf_form_shared_width,
    hf_form_first_dense, hf_form_layers_by_name, hf_form_sparse_layers, hf_form_moe_layers,
    hf_form_layer_range;

extern const HfForm hf_form_hybrid_layers, hf_form_mamba_layers, hf_form_mamba_epsilon, hf_form_step_limits,
    hf_form_expand, hf_form_mamba_heads, hf_form_mamba_width, hf_form_silu, hf_form_paired_layers,
    hf_form_attention_indices, hf_form_attention_layers, hf_form_linear_layers;

/* ---- reading ---- */

/* Sets an error that states the key's value and the reason, such as "key is 7, not a string". */
void hf_refuse(HfReader *, const char *key, const char *why);
/* Like hf_refuse, for a key in the object `in`, or in the file's root object if `in` is NULL. */
void hf_refuse_inside(HfReader *, const json_t *in, const char *key, const char *why);
/* Returns a member of `in`, or of the file's root object if `in` is NULL. Returns NULL if the member is
 * absent or null. */
const json_t *hf_member(const HfReader *, const json_t *in, const char *key);
/* Reads a number that must be at least 1. The fallback may be HF_REQUIRED. After an error, returns 1, so that the
 * caller can divide by the result. */
int64_t hf_get_size(HfReader *, const char *key, int64_t fallback);
/* like hf_get_size, but the number may be 0 */
int64_t hf_get_count(HfReader *, const char *key, int64_t fallback);
double hf_get_real(HfReader *, const json_t *in, const char *key, double fallback);
bool hf_get_flag(HfReader *, const json_t *in, const char *key, bool fallback);
const char *hf_get_text(HfReader *, const json_t *in, const char *key, const char *fallback);
/* Returns the integer that determines `option` in config.json: finds this model type's row for the option, and reads
 * the row's key. */
int64_t hf_get_option(HfReader *, int option);
/* Returns n times the size that hf_get_option returns. The product must be within the range of the row's
 * option. If the product is outside this range, the error names the row's key if present, and otherwise the
 * key that contains the size. */
int64_t hf_get_multiple(HfReader *, const HfRow *, int64_t n, int option);
/* Returns the number of layers. Returns an error if the number exceeds the maximum of --num-layers. */
int64_t hf_get_layers(HfReader *);
/* Returns the row that lists a hybrid model's layers, or NULL if the type has no such row. */
const HfRow *hf_hybrid_row(const HfRow *const *rows, int n);
/* Appends the letters of the layers that the row describes. Returns false if a layer is not supported. */
bool hf_hybrid_letters(HfReader *, const HfRow *, Str *);
/* Returns an array that states, for each layer, whether the key's list contains the layer's number. If there is no key
 * or no list, all values are false. The caller frees the array. */
bool *hf_get_listed_layers(HfReader *, const char *key, int64_t layers);
/* Returns whether layer i has a rotation. Returns true if the type has no rotated_layers row. */
bool hf_is_rotated(HfReader *, int64_t i);
/* Sets an option by appending `name = value`. */
void hf_set_size(HfReader *, int option, int64_t);
void hf_set_real(HfReader *, int option, double);
/* Sets the option so that its field has this value, even if the option's name states the opposite. */
void hf_set_flag(HfReader *, int option, bool);
/* Sets an option to a layer pattern such as "[1,0,1]". */
void hf_set_pattern(HfReader *, int option, const bool *layer, int64_t layers);
void hf_set_text(HfReader *, int option, const char *);

/* Returns, as text, the value that a FIX or LACK row sets. */
const char *hf_fixed_text(const HfRow *);
/* The read and write functions for KEY rows, whose values are numbers or flags. */
void hf_value_read(HfReader *, const HfRow *);
void hf_value_write(HfWriter *, const HfRow *);

/* ---- writing ---- */

/* Returns the part of a BERT class name after the model's name, such as "ForMaskedLM". */
const char *hf_bert_head(const Config *);

void hf_put(HfWriter *, const char *key, json_t *value); /* takes ownership of the caller's reference */
void hf_put_size(HfWriter *, const char *key, int64_t);
void hf_put_flag(HfWriter *, const char *key, bool);
