/* Forms of heads, sizes, activations and biases. */
#include <string.h>

#include "ckpt/hf_form.h"

/* The size of a head where nothing says otherwise. */
static int64_t usual_head_size(HfReader *r) {
    const int64_t heads = hf_get_option(r, OPTION_num_attention_heads),
                  hidden = hf_get_option(r, OPTION_hidden_size);
    return hidden >= heads ? hidden / heads : 1;
}

/* The row's fallback; the usual size if there is none, or if the key is null. */
static int64_t get_or_usual(HfReader *r, const HfRow *row, int64_t usual) {
    const bool is_there = json_object_get(r->root, row->key) != NULL;
    return hf_get_size(r, row->key, is_there || row->fallback == HF_USUAL ? usual : (int64_t)row->fallback);
}

static void query_groups_read(HfReader *r, const HfRow *row) {
    hf_set_flag(r, OPTION_group_query_attention, true);
    hf_set_size(r, row->option, get_or_usual(r, row, hf_get_option(r, OPTION_num_attention_heads)));
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
        hf_refuse(r, "hidden_size",
                  "not a multiple of num_attention_heads, as transformers wants it of this type of model");
}

static void fourfold_read(HfReader *r, const HfRow *row) {
    hf_set_size(r, row->option, get_or_usual(r, row, 4 * hf_get_option(r, OPTION_hidden_size)));
}

static void positions_read(HfReader *r, const HfRow *row) {
    const int64_t positions = hf_get_option(r, row->option);
    hf_set_size(r, OPTION_seq_length, positions);
    hf_set_size(r, row->option, positions);
}

/* ---- activations ---- */

/* Of several names of an activation the first is written. */
static const struct {
    const char *name;
    MlpActivation activation;
} ACTIVATIONS[] = {{"gelu_new", MLP_GELU_TANH}, {"gelu_pytorch_tanh", MLP_GELU_TANH},
                   {"gelu", MLP_GELU_ERF},      {"quick_gelu", MLP_QUICK_GELU},
                   {"relu2", MLP_SQUARED_RELU}, {"silu", MLP_SWIGLU}};
enum { N_ACTIVATIONS = sizeof ACTIVATIONS / sizeof *ACTIVATIONS };

static void activation_read(HfReader *r, const HfRow *row) {
    const char *word = hf_get_text(r, NULL, row->key, row->word);
    int i = 0;
    while (i < N_ACTIVATIONS && strcmp(word, ACTIVATIONS[i].name)) i++;
    if (i == N_ACTIVATIONS || ACTIVATIONS[i].activation == MLP_SWIGLU)
        hf_refuse(r, row->key, "an activation that this model does not have");
    else
        hf_set_text(r, row->option, MlpActivation_spellings[ACTIVATIONS[i].activation]);
}

static void activation_write(HfWriter *w, const HfRow *row) {
    int i = 0;
    while (i < N_ACTIVATIONS && ACTIVATIONS[i].activation != w->config->activation) i++;
    char text[40] = "\"";
    if (i < N_ACTIVATIONS) strcat(strcat(text, ACTIVATIONS[i].name), "\"");
    hf_put_text(w, row->key, i < N_ACTIVATIONS ? text : "null");
}

static void gate_read(HfReader *r, const HfRow *row) {
    if (strcmp(hf_get_text(r, NULL, row->key, row->word), row->word))
        hf_refuse(r, row->key, "but this model gates with silu only");
    hf_set_text(r, row->option, MlpActivation_spellings[MLP_SWIGLU]);
}

/* ---- biases ---- */

static void both_biases_read(HfReader *r, const HfRow *row) {
    const bool attention = hf_get_flag(r, row->key, false), mlp = hf_get_flag(r, "mlp_bias", false);
    if (attention != mlp) hf_refuse(r, row->key, "and mlp_bias differs: this model has both or neither");
    hf_set_flag(r, row->option, !attention); /* disable-bias-linear */
}

static void both_biases_write(HfWriter *w, const HfRow *row) {
    hf_put_flag(w, row->key, w->config->add_bias_linear);
    hf_put_flag(w, "mlp_bias", w->config->add_bias_linear);
}

const HfForm hf_form_query_groups = {query_groups_read, hf_value_write},
             hf_form_head_size = {head_size_read, hf_value_write},
             hf_form_head_size_is_usual = {head_size_is_usual_read, NULL},
             hf_form_hidden_size_divides = {hidden_size_divides_read, NULL},
             hf_form_fourfold = {fourfold_read, hf_value_write},
             hf_form_positions = {positions_read, hf_value_write},
             hf_form_activation = {activation_read, activation_write},
             hf_form_gate = {gate_read, activation_write},
             hf_form_both_biases = {both_biases_read, both_biases_write};
