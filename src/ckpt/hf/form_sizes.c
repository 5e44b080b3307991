/* Forms for heads, sizes, activations, scores and biases. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/hf/form.h"

/* Returns the default head size: the hidden size divided by the number of heads. */
static int64_t usual_head_size(HfReader *r) {
    const int64_t heads = hf_get_option(r, OPTION_num_attention_heads),
                  hidden = hf_get_option(r, OPTION_hidden_size);
    return hidden >= heads ? hidden / heads : 1;
}

/* Reads a size. If the key is missing, the value is the row's fallback. If the key is null or the row has no
 * fallback, the value is the usual size. */
static int64_t get_or_usual(HfReader *r, const HfRow *row, int64_t usual) {
    const bool is_there = json_object_get(r->root, row->key) != NULL;
    return hf_get_size(r, row->key, is_there || row->fallback == HF_USUAL ? usual : (int64_t)row->fallback);
}

static void count_read(HfReader *r, const HfRow *row) {
    hf_set_size(r, row->option, hf_get_count(r, row->key, (int64_t)row->fallback));
}

static void query_groups_read(HfReader *r, const HfRow *row) {
    hf_set_flag(r, OPTION_group_query_attention, true);
    hf_set_size(r, row->option, get_or_usual(r, row, hf_get_option(r, OPTION_num_attention_heads)));
}

static void own_keys_read(HfReader *r, const HfRow *row) {
    const int64_t heads = hf_get_option(r, OPTION_num_attention_heads);
    if (get_or_usual(r, row, heads) != heads)
        hf_refuse(r, row->key, "but in this type of model each query head has a key head");
}

/* Reads a size. The value null means that the option is not set. If the key is missing, the value is the fallback, and
 * a fallback of 0 means that the option is not set. */
static void nullable_read(HfReader *r, const HfRow *row) {
    const bool absent = !json_object_get(r->root, row->key);
    if (hf_member(r, NULL, row->key) || (absent && row->fallback != 0)) hf_value_read(r, row);
}

static void nullable_write(HfWriter *w, const HfRow *row) {
    if (i64_is_set(*(const int64_t *)config_value(w->config, row->option)))
        hf_value_write(w, row);
    else
        hf_put(w, row->key, json_null());
}

static void only_read(HfReader *r, const HfRow *row) {
    const int64_t only = (int64_t)row->fallback;
    if (hf_get_size(r, row->key, only) != only) hf_refuse(r, row->key, "which is not supported");
    hf_set_size(r, row->option, only);
}

static void head_size_read(HfReader *r, const HfRow *row) {
    hf_set_size(r, row->option, get_or_usual(r, row, usual_head_size(r)));
}

static void head_size_is_usual_read(HfReader *r, const HfRow *row) {
    const int64_t usual = usual_head_size(r);
    (void)row;
    if (hf_get_size(r, "head_dim", usual) != usual)
        hf_refuse(r, "head_dim", "not hidden_size / num_attention_heads");
}

static void hidden_size_divides_read(HfReader *r, const HfRow *row) {
    (void)row;
    if (hf_get_option(r, OPTION_hidden_size) % hf_get_option(r, OPTION_num_attention_heads))
        hf_refuse(
            r, "hidden_size",
            "not a multiple of num_attention_heads, which transformers requires for this type of model");
}

static void heads_fill_hidden_read(HfReader *r, const HfRow *row) {
    const int64_t heads = hf_get_option(r, OPTION_num_attention_heads),
                  hidden = hf_get_option(r, OPTION_hidden_size);
    (void)row;
    if (hidden % heads || hidden / heads != hf_get_option(r, OPTION_kv_channels))
        hf_refuse(r, "hidden_size",
                  "not num_attention_heads * head_dim, which transformers requires for this type of model");
}

static void fourfold_read(HfReader *r, const HfRow *row) {
    const bool is_given = hf_member(r, NULL, row->key) != NULL;
    hf_set_size(r, row->option,
                is_given ? hf_get_size(r, row->key, 1) : hf_get_multiple(r, row, 4, OPTION_hidden_size));
}

static void always_fourfold_read(HfReader *r, const HfRow *row) {
    hf_set_size(r, row->option, hf_get_multiple(r, row, 4, OPTION_hidden_size));
}

/* Reads the number of decoder layers. If the key is missing, uses the number of encoder layers. */
static void decoder_layers_read(HfReader *r, const HfRow *row) {
    hf_set_size(r, row->option, hf_get_size(r, row->key, hf_get_option(r, OPTION_num_layers)));
}

static void positions_read(HfReader *r, const HfRow *row) {
    const int64_t positions = hf_get_option(r, row->option);
    hf_set_size(r, OPTION_seq_length, positions);
    hf_set_size(r, row->option, positions);
}

/* ---- activations ---- */

/* The names of activations. If an activation has several names, an export writes the first. In each model type, either
 * all activations are gated or none are. */
static const struct {
    const char *name;
    bool is_gate;
    MlpActivation activation;
} ACTIVATIONS[] = {{"gelu_new", false, MLP_GELU_TANH},
                   {"gelu_pytorch_tanh", false, MLP_GELU_TANH},
                   {"gelu_python_tanh", false, MLP_GELU_TANH},
                   {"gelu_accurate", false, MLP_GELU_TANH},
                   {"gelu", false, MLP_GELU_ERF},
                   {"gelu_python", false, MLP_GELU_ERF},
                   {"quick_gelu", false, MLP_QUICK_GELU},
                   {"relu2", false, MLP_SQUARED_RELU},
                   {"relu", false, MLP_RELU},
                   {"xielu", false, MLP_XIELU},
                   {"silu", true, MLP_SWIGLU},
                   {"swish", true, MLP_SWIGLU},
                   {"gelu_new", true, MLP_GEGLU_TANH},
                   {"gelu_pytorch_tanh", true, MLP_GEGLU_TANH},
                   {"gelu_python_tanh", true, MLP_GEGLU_TANH},
                   {"gelu_accurate", true, MLP_GEGLU_TANH},
                   {"gelu", true, MLP_GEGLU_ERF},
                   {"gelu_python", true, MLP_GEGLU_ERF},
                   {"quick_gelu", true, MLP_QUICK_GEGLU}};
enum { N_ACTIVATIONS = sizeof ACTIVATIONS / sizeof *ACTIVATIONS };

static void set_activation(HfReader *r, const HfRow *row, const char *word, bool is_gate) {
    int i = 0;
    while (i < N_ACTIVATIONS && (strcmp(word, ACTIVATIONS[i].name) || ACTIVATIONS[i].is_gate != is_gate)) i++;
    /* only Apertus stores the parameters that xIELU learns */
    if (i == N_ACTIVATIONS ||
        (ACTIVATIONS[i].activation == MLP_XIELU && row->form != &hf_form_learned_activation))
        hf_refuse(r, row->key, "an activation that is not supported");
    else
        hf_set_text(r, row->option, MlpActivation_spellings[ACTIVATIONS[i].activation]);
}

static const char *activation_word(HfReader *r, const HfRow *row) {
    return hf_get_text(r, NULL, row->key, row->word);
}

static void activation_read(HfReader *r, const HfRow *row) {
    set_activation(r, row, activation_word(r, row), false);
}

static void gate_read(HfReader *r, const HfRow *row) {
    set_activation(r, row, activation_word(r, row), true);
}

/* Reads Gemma's activation. Gemma's first files say "gelu", but transformers uses the tanh approximation for them. */
static void gemma_gate_read(HfReader *r, const HfRow *row) {
    const char *word = activation_word(r, row);
    set_activation(r, row, strcmp(word, "gelu") ? word : "gelu_new", true);
}

/* Returns the activation's first name, or NULL if the activation has no name. */
static const char *activation_name(const Config *c) {
    int i = 0;
    while (i < N_ACTIVATIONS && ACTIVATIONS[i].activation != c->activation) i++;
    return i < N_ACTIVATIONS ? ACTIVATIONS[i].name : NULL;
}

/* Writes the activation if it has a name. Without a name, the file describes another model, and the check
 * that reads the file back fails. */
static void activation_write(HfWriter *w, const HfRow *row) {
    const char *name = activation_name(w->config);
    if (name) hf_put(w, row->key, json_string(name));
}

/* In T5, the prefix "gated-" precedes the name of a gated activation. "gated-gelu" is an exception and means
 * gelu_new. */
static const char GATED[] = "gated-", GATED_GELU[] = "gated-gelu";

/* Reads T5's feed_forward_proj. Files saved by transformers also contain the two parts of its value under separate
 * keys, which take precedence. */
static void feed_forward_read(HfReader *r, const HfRow *row) {
    const char *word = activation_word(r, row);
    const bool gated = !strncmp(word, GATED, strlen(GATED));
    const char *name = !strcmp(word, GATED_GELU) ? "gelu_new" : gated ? word + strlen(GATED) : word;
    set_activation(r, row, hf_get_text(r, NULL, "dense_act_fn", name),
                   hf_get_flag(r, NULL, "is_gated_act", gated));
}

static void feed_forward_write(HfWriter *w, const HfRow *row) {
    const MlpActivation a = w->config->activation;
    const char *name = a == MLP_GEGLU_TANH  ? "gelu"
                       : a == MLP_GEGLU_ERF ? "gelu_python"
                                            : activation_name(w->config);
    if (name) hf_put(w, row->key, json_sprintf("%s%s", a >= MLP_SWIGLU ? GATED : "", name));
}

/* ---- attention scores and logits ---- */

/* Reads the integer whose square root divides the scores. */
static void pre_attention_scalar_read(HfReader *r, const HfRow *row) {
    hf_set_real(r, row->option, 1 / sqrt((double)hf_get_size(r, row->key, (int64_t)row->fallback)));
}

static void pre_attention_scalar_write(HfWriter *w, const HfRow *row) {
    /* a double represents such integers exactly */
    const double scale = w->config->softmax_scale, most = 1e15;
    hf_put_size(w, row->key, (int64_t)fmin(round(1 / (scale * scale)), most));
}

/* Reads whether scores are divided by the square root of the head size. */
static void scaled_scores_read(HfReader *r, const HfRow *row) {
    if (!hf_get_flag(r, NULL, row->key, row->fallback != 0)) hf_set_real(r, row->option, 1);
}

static void scaled_scores_write(HfWriter *w, const HfRow *row) {
    hf_put_flag(w, row->key, w->config->softmax_scale != 1);
}

/* Reads a factor, and sets the option to its reciprocal. */
static void reciprocal_read(HfReader *r, const HfRow *row) {
    const double factor = hf_get_real(r, NULL, row->key, row->fallback);
    const ConfigRange range = config_range(row->option);
    if (!(1 / factor >= range.low && 1 / factor <= range.high))
        hf_refuse(r, row->key, "a number that this model cannot have");
    hf_set_real(r, row->option, 1 / factor);
}

static void reciprocal_write(HfWriter *w, const HfRow *row) {
    hf_put(w, row->key, json_real(1 / *(const double *)config_value(w->config, row->option)));
}

/* Reads a cap. The value null means no cap. If the key is missing, the value is the fallback. A fallback of 0 means
 * no cap. */
static void softcap_read(HfReader *r, const HfRow *row) {
    const json_t *cap = json_object_get(r->root, row->key);
    if (cap ? !json_is_null(cap) : row->fallback != 0) hf_value_read(r, row);
}

static void softcap_write(HfWriter *w, const HfRow *row) {
    if (f64_is_set(*(const double *)config_value(w->config, row->option)))
        hf_value_write(w, row);
    else
        hf_put(w, row->key, json_null());
}

/* Reads whether T5's logits are scaled. The logits are scaled if the embeddings are tied. Version 5 of transformers
 * always declares the embeddings tied, and also writes scale_decoder_outputs. Only the weights show whether the
 * embeddings are tied (hf_config_fit). */
static void scaled_head_read(HfReader *r, const HfRow *row) {
    const bool is_given = hf_member(r, NULL, row->key) != NULL, /* the value null means the fallback */
        tied = is_given ? hf_get_flag(r, NULL, row->key, true) : row->fallback != 0,
               scaled = hf_get_flag(r, NULL, "scale_decoder_outputs", tied);
    if (scaled && !tied)
        hf_refuse(r, "scale_decoder_outputs", "but without tied embeddings the logits are not scaled");
    hf_set_flag(r, row->option, !tied);
    if (tied && !scaled) hf_set_real(r, OPTION_logits_scaling, 1);
}

static void scaled_head_write(HfWriter *w, const HfRow *row) {
    const bool tied = !w->config->untie_embeddings_and_output_weights;
    hf_put_flag(w, row->key, tied);
    if (tied && w->config->derived.logits_scaling == 1) hf_put_flag(w, "scale_decoder_outputs", false);
}

/* ---- MPT ---- The attention keys are members of an object. */

static void read_inside(HfReader *r, const json_t *in, const char *key, int option, double fallback) {
    const double x = hf_get_real(r, in, key, fallback);
    const ConfigRange range = config_range(option);
    if (!(x >= range.low && x <= range.high))
        hf_refuse_inside(r, in, key, "a number that this model cannot have");
    hf_set_real(r, option, x);
}

/* MPT's original code reads keys that transformers ignores. The values of such keys must have no effect. */
static void mpt_attention_read(HfReader *r, const HfRow *row) {
    static const char SCALE[] = "softmax_scale", CLIP[] = "clip_qkv", BIAS[] = "alibi_bias_max",
                      NOT_APPLIED[] = "which transformers does not apply in this type of model";
    static const struct {
        const char *key;
        bool usual;
    } FLAGS[] = {{"alibi", true}, {"qk_ln", false}, {"prefix_lm", false}};
    json_t *none = json_object();
    const json_t *found = hf_member(r, NULL, row->key), *in = json_is_object(found) ? found : none;
    if (found && in != found) hf_refuse(r, row->key, "not an object");
    for (size_t i = 0; i < sizeof FLAGS / sizeof *FLAGS; i++)
        if (hf_get_flag(r, in, FLAGS[i].key, FLAGS[i].usual) != FLAGS[i].usual)
            hf_refuse_inside(r, in, FLAGS[i].key, NOT_APPLIED);
    if (hf_get_real(r, in, BIAS, 8) != 8) hf_refuse_inside(r, in, BIAS, NOT_APPLIED);
    if (hf_get_real(r, in, CLIP, 0) != 0)
        hf_refuse_inside(r, in, CLIP, "but queries, keys and values cannot be clipped");
    if (hf_member(r, in, SCALE)) read_inside(r, in, SCALE, row->option, 1);
    read_inside(r, in, "attn_pdrop", OPTION_attention_dropout, 0);
    read_inside(r, in, "attn_pdrop", OPTION_hidden_dropout, 0);
    json_decref(none);
}

/* Writes the attention keys except attn_pdrop, because transformers allows only integers for it. */
static void mpt_attention_write(HfWriter *w, const HfRow *row) {
    hf_put(w, row->key, json_pack("{s:f}", "softmax_scale", w->config->softmax_scale));
}

/* ---- biases ---- */

/* Sets whether attention's four projections have biases. */
static void set_attention_biases(HfReader *r, bool biases) {
    hf_set_flag(r, OPTION_add_qkv_bias, biases);
    hf_set_flag(r, OPTION_add_attn_proj_bias, biases);
}

static void attention_biases_read(HfReader *r, const HfRow *row) {
    set_attention_biases(r, hf_get_flag(r, NULL, row->key, row->fallback != 0));
}

static void attention_biases_write(HfWriter *w, const HfRow *row) {
    const Config *c = w->config;
    hf_put_flag(w, row->key, c->add_bias_linear || (c->add_qkv_bias && c->add_attn_proj_bias));
}

static void both_biases_read(HfReader *r, const HfRow *row) {
    const bool usual = row->fallback != 0, attention = hf_get_flag(r, NULL, row->key, usual),
               mlp = hf_get_flag(r, NULL, "mlp_bias", usual);
    set_attention_biases(r, attention);
    hf_set_flag(r, OPTION_add_mlp_bias, mlp);
    hf_set_flag(r, row->option, attention && mlp);
}

static void both_biases_write(HfWriter *w, const HfRow *row) {
    attention_biases_write(w, row);
    hf_put_flag(w, "mlp_bias", w->config->add_bias_linear || w->config->add_mlp_bias);
}

const HfForm hf_form_same_rate = {hf_value_read, NULL}; /* another row writes the key */
const HfForm hf_form_count = {count_read, hf_value_write},
             hf_form_query_groups = {query_groups_read, hf_value_write},
             hf_form_own_keys = {own_keys_read, hf_value_write},
             hf_form_nullable = {nullable_read, nullable_write}, hf_form_only = {only_read, hf_value_write},
             hf_form_head_size = {head_size_read, hf_value_write},
             hf_form_head_size_is_usual = {head_size_is_usual_read, NULL},
             hf_form_hidden_size_divides = {hidden_size_divides_read, NULL},
             hf_form_heads_fill_hidden = {heads_fill_hidden_read, NULL},
             hf_form_fourfold = {fourfold_read, hf_value_write},
             hf_form_always_fourfold = {always_fourfold_read, NULL},
             hf_form_decoder_layers = {decoder_layers_read, hf_value_write},
             hf_form_feed_forward = {feed_forward_read, feed_forward_write},
             hf_form_positions = {positions_read, hf_value_write},
             hf_form_activation = {activation_read, activation_write},
             hf_form_learned_activation = {activation_read, activation_write},
             hf_form_gate = {gate_read, activation_write},
             hf_form_gemma_gate = {gemma_gate_read, activation_write},
             hf_form_pre_attention_scalar = {pre_attention_scalar_read, pre_attention_scalar_write},
             hf_form_scaled_scores = {scaled_scores_read, scaled_scores_write},
             hf_form_softcap = {softcap_read, softcap_write},
             hf_form_reciprocal = {reciprocal_read, reciprocal_write},
             hf_form_scaled_head = {scaled_head_read, scaled_head_write},
             hf_form_mpt_attention = {mpt_attention_read, mpt_attention_write},
             hf_form_attention_biases = {attention_biases_read, attention_biases_write},
             hf_form_both_biases = {both_biases_read, both_biases_write};
