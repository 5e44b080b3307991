#include "unit/cmocka_all.h"

#include <jansson.h>

#include "ckpt/hf_config.h"
#include "unit/ckpt/model.h"

static HfFamily family_of(const char *architecture) {
    static const struct {
        const char *architecture;
        HfFamily family;
    } OTHERS[] = {{"GPT2LMHeadModel", HF_GPT2},
                  {"MixtralForCausalLM", HF_MIXTRAL},
                  {"Qwen2MoeForCausalLM", HF_QWEN_MOE},
                  {"Qwen3MoeForCausalLM", HF_QWEN_MOE},
                  {"Glm4MoeForCausalLM", HF_GLM_MOE}};
    for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS; i++)
        if (!strcmp(architecture, OTHERS[i].architecture)) return OTHERS[i].family;
    return HF_LLAMA;
}

static void same_experts(const Model *a, const Model *b) {
    const Config *c = &a->config, *d = &b->config;
    assert_true(c->num_experts == d->num_experts);
    for (int64_t i = 0; i < c->num_layers; i++)
        assert_int_equal(a->derived.layer_moe[i], b->derived.layer_moe[i]);
    if (!a->derived.num_moe_layers) return;
#define SAME(field) assert_true(c->field == d->field)
    SAME(moe_router_topk), SAME(moe_router_score_function), SAME(moe_router_pre_softmax);
    SAME(moe_router_num_groups), SAME(moe_router_group_topk), SAME(moe_router_enable_expert_bias);
    SAME(moe_shared_expert_intermediate_size), SAME(moe_shared_expert_gate);
#undef SAME
    assert_true(a->derived.moe_ffn_hidden_size == b->derived.moe_ffn_hidden_size);
    const double x = c->moe_router_topk_scaling_factor, y = d->moe_router_topk_scaling_factor;
    assert_true((f64_is_set(x) ? x : 1) == (f64_is_set(y) ? y : 1));
}

static void config_round_trip_of(const char *conf, const char *architecture) {
    Model a = {0}, b = {0};
    Str json = {0}, back = {0};
    HfFamily family;
    char *scratch = scratch_new(), *path = mem_printf("%s/config.json", scratch);
    model_parse(&a, conf);
    assert_ok(hf_config_export(&a.config, &a.derived, F32, &json, &family));
    json_t *root = json_loadb(json.s, json.len, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(root);
    assert_string_equal(json_string_value(json_array_get(json_object_get(root, "architectures"), 0)),
                        architecture);
    assert_int_equal(family, family_of(architecture));
    json_decref(root);
    assert_ok(file_write_atomic(path, json.s, json.len));
    assert_ok(hf_config_import(path, &back));
    model_parse(&b, back.s);
    const Config *c = &a.config, *d = &b.config;
#define SAME(field) assert_true(c->field == d->field)
    SAME(num_layers), SAME(hidden_size), SAME(num_attention_heads), SAME(position_embedding_type),
        SAME(rotary_base);
    SAME(rotary_percent), SAME(normalization), SAME(norm_epsilon), SAME(apply_layernorm_1p),
        SAME(add_bias_linear);
    SAME(qk_layernorm), SAME(untie_embeddings_and_output_weights), SAME(hidden_dropout),
        SAME(attention_dropout);
    SAME(use_rope_scaling), SAME(rope_scaling_factor), SAME(rope_scaling_low_freq_factor),
        SAME(rope_scaling_high_freq_factor);
    SAME(rope_scaling_original_max_position_embeddings);
    assert_int_equal(c->add_bias_linear || c->add_qkv_bias, d->add_bias_linear || d->add_qkv_bias);
#undef SAME
    const Derived *x = &a.derived, *y = &b.derived;
#define SAME(field) assert_true(x->field == y->field)
    SAME(ffn_hidden_size), SAME(kv_channels), SAME(num_query_groups), SAME(max_position_embeddings),
        SAME(rotary_dim);
    SAME(vocab_size), SAME(activation);
#undef SAME
    for (int64_t i = 0; i < c->num_layers; i++) {
        assert_int_equal(x->layer_windowed[i], y->layer_windowed[i]);
        if (x->layer_windowed[i]) assert_int_equal(x->window_left, y->window_left);
    }
    same_experts(&a, &b);
    args_free(&a.args), args_free(&b.args);
    arena_free(a.arena), arena_free(b.arena);
    str_free(&json), str_free(&back);
    free(path);
    scratch_remove(scratch);
}

static void expect_no_export(const char *conf) {
    Model m = {0};
    Str json = {0};
    HfFamily family;
    model_parse(&m, conf);
    assert_err(hf_config_export(&m.config, &m.derived, F32, &json, &family), "cannot be exported");
    args_free(&m.args);
    arena_free(m.arena);
    str_free(&json);
}

/* The class of each golden case is in its provenance, from transformers; with sinks it is put together from
 * several. */
static void config_round_trip(const char *dir) {
    Str conf = slurp(dir, "run.conf"), provenance = slurp(dir, "provenance.json");
    json_t *root = json_loadb(provenance.s, provenance.len, 0, NULL);
    if (strstr(conf.s, "softmax-type"))
        expect_no_export(conf.s);
    else
        config_round_trip_of(conf.s, json_string_value(json_object_get(root, "model")));
    json_decref(root);
    str_free(&conf), str_free(&provenance);
}

#define BASE                                                                                                 \
    "num-layers = 4\nhidden-size = 24\nnum-attention-heads = 4\nseq-length = 16\nvocab-size = "              \
    "50\nhidden-dropout = 0\n"
#define LLAMA                                                                                                \
    "position-embedding-type = rope\nnormalization = RMSNorm\nswiglu = true\ndisable-bias-linear = true\n"

#define EXPERTS "ffn-hidden-size = 40\nmoe-ffn-hidden-size = 20\nnum-experts = 8\n"
#define GLM     "moe-router-score-function = sigmoid\nmoe-router-enable-expert-bias = true\n"

static void config_json_round_trips(void **unused) {
    (void)unused;
    for_each_case(config_round_trip);
    config_round_trip_of(
        BASE LLAMA
        "ffn-hidden-size = 40\nqk-layernorm = true\nwindow-size = 7,0\nwindow-attn-skip-freq = [0,1,0,1]\n",
        "Qwen3ForCausalLM");
    config_round_trip_of(BASE LLAMA "ffn-hidden-size = 40\nrotary-seq-len-interpolation-factor = 2.5\n",
                         "LlamaForCausalLM");
    config_round_trip_of(BASE LLAMA EXPERTS "qk-layernorm = true\nmoe-layer-freq = [0,1,0,1]\n",
                         "Qwen3MoeForCausalLM");
    config_round_trip_of(BASE LLAMA EXPERTS "qk-layernorm = true\nmoe-router-pre-softmax = true\n",
                         "Qwen3MoeForCausalLM");
    config_round_trip_of(BASE LLAMA "ffn-hidden-size = 40\nnum-experts = 8\nwindow-size = 7,0\n",
                         "MixtralForCausalLM");
    config_round_trip_of(BASE LLAMA EXPERTS GLM "moe-shared-expert-intermediate-size = 40\n",
                         "Glm4MoeForCausalLM");
    config_round_trip_of(BASE "activation = gelu-erf\nattention-dropout = 0.3\n", "GPT2LMHeadModel");
}

static void models_that_hf_lacks_are_refused(void **unused) {
    (void)unused;
    static const char *const confs[] = {
        BASE LLAMA "rotary-interleaved = true\n",
        BASE LLAMA "qk-layernorm = true\nadd-qkv-bias = true\n",
        BASE "normalization = RMSNorm\n",
        BASE "swiglu = true\n",
        BASE LLAMA "apply-layernorm-1p = true\n",
        BASE LLAMA "kv-channels = 8\nrotary-percent = 0.5\n",
        BASE "position-embedding-type = none\n",
        BASE LLAMA "window-size = 7,0\nwindow-attn-skip-freq = 2\n",
        BASE LLAMA EXPERTS "moe-expert-capacity-factor = 1\n",
        BASE LLAMA EXPERTS "moe-layer-freq = 2\n",
        BASE LLAMA EXPERTS GLM,
        BASE LLAMA EXPERTS GLM "moe-shared-expert-intermediate-size = 30\n",
        BASE LLAMA EXPERTS GLM "moe-shared-expert-intermediate-size = 40\nmoe-layer-freq = [1,0,1,1]\n",
        BASE LLAMA EXPERTS "moe-router-topk-scaling-factor = 2\n",
        BASE LLAMA EXPERTS "moe-shared-expert-intermediate-size = 40\n",
        BASE "num-experts = 4\ndisable-bias-linear = true\n",
        BASE LLAMA "softmax-type = learnable\n",
        BASE LLAMA "softmax-type = off-by-one\n",
        BASE "softmax-type = learnable\n",
    };
    for (size_t i = 0; i < sizeof confs / sizeof *confs; i++) expect_no_export(confs[i]);
}

/* Beside the sizes of a small model of that type; quotes are single here. */
static const struct {
    const char *type, *keys, *says;
} REFUSED[] = {
    {"bloom", "", "model_type is '\"bloom\"', but only gpt2"},
    {"llama", "'num_hidden_layers': 70000", "more layers than"},
    {"llama", "'quantization_config': {}", "quantized"},
    {"llama", "'hidden_act': 'gelu'", "hidden_act is '\"gelu\"'"},
    {"llama", "'rms_norm_eps': 'small'", "rms_norm_eps is '\"small\"', not a number"},
    {"llama", "'attention_bias': true", "mlp_bias differs"},
    {"llama", "'attention_bias': 1", "neither true nor false"},
    {"llama", "'head_dim': 0", "head_dim is '0', not a positive whole number"},
    {"llama", "'num_attention_heads': 3", "hidden_size is '8', not a multiple of num_attention_heads"},
    {"llama", "'rope_scaling': {'type': 'yarn'}", "scaling of positions"},
    {"llama", "'rope_scaling': {'type': 'linear'}", "without all numbers that its rope_type needs"},
    {"llama", "'rope_scaling': 3", "rope_scaling is '3', not an object"},
    {"llama", "'partial_rotary_factor': 0.5", "rotates whole heads"},
    {"llama", "'is_causal': false", "is_causal is 'false'"},
    {"llama", "'per_layer_config': {}", "per_layer_config is"},
    {"llama", "'layer_types': ['full_attention', 'odd']",
     "layer_types has 'odd' for layer 1; only full_attention"},
    {"llama", "'layer_types': ['sliding_attention', 'full_attention']", "gives this model no window"},
    {"mistral", "'layer_types': ['sliding_attention', 'full_attention']", "gives every layer of this type"},
    {"mistral", "'sliding_window': -4", "sliding_window is '-4'"},
    {"qwen2", "'layer_types': ['full_attention', 7]", "layer_types has no text for layer 1"},
    {"qwen2", "'layer_types': []", "layer_types is '[]', not a list with one entry for each layer"},
    {"qwen2", "'layer_types': 'full_attention'", "not a list with one entry for each layer"},
    {"qwen2", "'use_sliding_window': true, 'sliding_window': 0", "sliding_window is '0', not a positive"},
    {"qwen2", "'rope_parameters': {'full_attention': {}}", "for each kind of layer"},
    {"qwen3", "'max_window_layers': -1", "max_window_layers is '-1'"},
    {"qwen3", "'layer_types': ['full_attention', 'sliding_attention']", "gives this model no window"},
    {"qwen3_moe", "'use_sliding_window': true, 'layer_types': ['full_attention', 'sliding_attention']",
     "gives every layer of this type"},
    {"qwen3_moe", "'mlp_only_layers': 1", "mlp_only_layers is '1', not a list"},
    {"qwen3_moe", "'mlp_only_layers': ['0']", "not a list of numbers of layers"},
    {"qwen2_moe", "'num_experts': null", "num_experts is 'null'"},
    {"qwen2_moe", "'use_sliding_window': true, 'sliding_window': null", "but use_sliding_window is true"},
    {"stablelm", "'use_parallel_residual': true", "use_parallel_residual is 'true'"},
    {"stablelm", "'head_dim': 8", "head_dim is '8', not hidden_size / num_attention_heads"},
    {"nemotron", "'hidden_act': 'silu'", "activation that this model does not have"},
    {"glm4_moe", "'n_group': 2, 'num_experts_per_tok': 3", "topk_group is"},
    {"glm4_moe", "'norm_topk_prob': false", "norm_topk_prob is 'false'"},
    {"glm4_moe", "'first_k_dense_replace': -1", "first_k_dense_replace is '-1'"},
    {"gpt2", "'scale_attn_by_inverse_layer_idx': true", "scale_attn_by_inverse_layer_idx"},
    {"gpt2", "'hidden_size': 16", "hidden_size is '16', but GPT-2's own name"},
};

/* The later of two equal keys is dropped: a key of `keys` replaces the usual one. */
static char *small_model(const char *type, const char *keys) {
    static const char LLAMA_KEYS[] =
        "{'num_hidden_layers': 2, 'hidden_size': 8, 'num_attention_heads': 2, 'intermediate_size': 16, "
        "'vocab_size': 9, 'max_position_embeddings': 16, 'num_experts': 4, 'num_experts_per_tok': 2, "
        "'moe_intermediate_size': 8}",
                      GPT2_KEYS[] =
                          "{'n_layer': 1, 'n_embd': 8, 'n_head': 2, 'n_positions': 9, 'vocab_size': 9}";
    char *own = mem_printf("{%s}", keys), *usual = mem_strdup(strcmp(type, "gpt2") ? LLAMA_KEYS : GPT2_KEYS);
    for (char *c = own; *c; c++) *c = *c == '\'' ? '"' : *c;
    for (char *c = usual; *c; c++) *c = *c == '\'' ? '"' : *c;
    json_t *root = json_loads(usual, 0, NULL), *more = json_loads(own, 0, NULL);
    assert_non_null(root), assert_non_null(more);
    json_object_update(root, more);
    json_object_set_new(root, "model_type", json_string(type));
    char *text = json_dumps(root, 0);
    json_decref(root), json_decref(more);
    free(own), free(usual);
    return text;
}

static Err import_text(const char *path, const char *text, Str *conf) {
    str_clear(conf);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
    return hf_config_import(path, conf);
}

static void config_json_is_not_trusted(void **unused) {
    (void)unused;
    static const char *const texts[][2] = {
        {"", "is not JSON"},
        {"[]", "no JSON object"},
        {"{}", "model_type is 'missing'"},
        {"{\"model_type\":7}", "model_type is '7'"},
        {"{\"model_type\":\"llama\"}", "num_hidden_layers is 'missing'"},
    };
    char *scratch = scratch_new_in_memory(), *path = mem_printf("%s/config.json", scratch);
    Str conf = {0};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        assert_err(import_text(path, texts[i][0], &conf), texts[i][1]);
    for (size_t i = 0; i < sizeof REFUSED / sizeof *REFUSED; i++) {
        char *text = small_model(REFUSED[i].type, REFUSED[i].keys);
        assert_err(import_text(path, text, &conf), REFUSED[i].says);
        free(text);
    }
    str_free(&conf);
    free(path);
    scratch_remove(scratch);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(config_json_round_trips),
        cmocka_unit_test(models_that_hf_lacks_are_refused),
        cmocka_unit_test(config_json_is_not_trusted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
