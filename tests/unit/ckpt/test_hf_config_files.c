/* config.json files that are damaged, describe unsupported models, or have a null key. */
#include "unit/cmocka_all.h"

#include <jansson.h>

#include "ckpt/hf/config.h"
#include "unit/ckpt/model.h"

#define LLAMA3 "'rope_type': 'llama3', 'factor': 8, 'low_freq_factor': 1, 'high_freq_factor': 4"

/* Keys, with single quotes, in addition to the sizes of a small model of the type. */
static const struct {
    const char *type, *keys, *says;
} REFUSED[] = {
    {"reformer", "", "model_type is \"reformer\", but only gpt2"},
    {"llama", "'num_hidden_layers': 70000", "more layers than"},
    {"llama", "'quantization_config': {}", "with the unsupported method 'unknown'"},
    {"llama", "'quantization_config': {'quant_method': 'fp8', 'weight_block_size': [128, 64]}",
     "weight_block_size for the method 'fp8' must be [128, 128]"},
    {"llama", "'quantization_config': {'quant_method': 'awq'}",
     "the unsupported method 'awq' (quantization_config); use the unquantized"},
    {"llama", "'hidden_act': 'relu2'", "hidden_act is \"relu2\""},
    {"llama", "'rms_norm_eps': 'small'", "rms_norm_eps is \"small\", not a number"},
    {"llama", "'attention_bias': 1", "neither true nor false"},
    {"llama", "'head_dim': 0", "head_dim is '0', not a positive whole number"},
    {"llama", "'num_attention_heads': 3", "hidden_size is '8', not a multiple of num_attention_heads"},
    {"llama", "'rope_scaling': {'type': 'odd'}", "a kind of RoPE scaling"},
    {"llama", "'rope_scaling': {'type': 'yarn'}", "which lacks a number that its rope_type needs"},
    {"llama", "'rope_scaling': {'type': 'yarn', 'factor': 2, 'truncate': 1}",
     "truncate in rope_scaling is '1', neither true nor false"},
    {"llama", "'rope_scaling': {'type': 'yarn', 'factor': 2, 'original_max_position_embeddings': 1.5}",
     "not a whole number of positions"},
    {"llama", "'rope_scaling': {'type': 'dynamic'}", "which lacks a number that its rope_type needs"},
    {"llama", "'rope_scaling': {'type': 'linear'}", "which lacks a number that its rope_type needs"},
    {"llama", "'rope_scaling': 3", "rope_scaling is '3', not an object"},
    {"llama", "'rope_scaling': {'type': 'linear', 'factor': '2'}",
     "factor in rope_scaling is \"2\", not a number"},
    {"llama", "'rope_scaling': {'rope_type': 5}", "rope_type in rope_scaling is '5', not a string"},
    {"llama", "'rope_parameters': {'rope_theta': 'x'}",
     "rope_theta in rope_parameters is \"x\", not a number"},
    {"llama", "'rope_scaling': {" LLAMA3 ", 'original_max_position_embeddings': 8.5}",
     "original_max_position_embeddings in rope_scaling is '8.5', not a whole number of positions"},
    {"llama", "'original_max_position_embeddings': 1e30, 'rope_scaling': {" LLAMA3 "}",
     "original_max_position_embeddings is '1e30', not a whole number of positions"},
    {"llama", "'partial_rotary_factor': 0.5", "rotates whole heads"},
    {"llama", "'is_causal': false", "is_causal is 'false'"},
    {"llama", "'per_layer_config': {}", "per_layer_config is"},
    {"llama", "'layer_types': ['full_attention', 'odd']",
     "layer_types has 'odd' for layer 1; only full_attention"},
    {"llama", "'layer_types': ['sliding_attention', 'full_attention']",
     "in transformers this model has no window"},
    {"mistral", "'layer_types': ['full_attention', 'full_attention']", "another type of model, ministral"},
    {"mistral", "'sliding_window': -4", "sliding_window is '-4'"},
    {"qwen2", "'layer_types': ['full_attention', 7]", "layer_types has no text for layer 1"},
    {"qwen2", "'layer_types': []", "layer_types is '[]', not a list with one entry for each layer"},
    {"qwen2", "'layer_types': 'full_attention'", "not a list with one entry for each layer"},
    {"qwen2", "'use_sliding_window': true, 'sliding_window': 0", "sliding_window is '0', not a positive"},
    {"qwen2", "'rope_parameters': {'full_attention': {}}", "for each kind of layer"},
    {"qwen3", "'max_window_layers': -1", "max_window_layers is '-1'"},
    {"qwen3", "'layer_types': ['full_attention', 'sliding_attention']",
     "in transformers this model has no window"},
    {"qwen3_moe", "'use_sliding_window': true, 'layer_types': ['full_attention', 'sliding_attention']",
     "gives every layer of this type"},
    {"qwen3_moe", "'mlp_only_layers': 1", "mlp_only_layers is '1', not a list"},
    {"qwen3_moe", "'mlp_only_layers': ['0']", "not a list of layer numbers"},
    {"qwen2_moe", "'num_experts': null", "num_experts is 'null'"},
    {"qwen2_moe", "'use_sliding_window': true, 'sliding_window': null", "but use_sliding_window is true"},
    {"stablelm", "'use_parallel_residual': true", "use_parallel_residual is 'true'"},
    {"stablelm", "'head_dim': 8", "head_dim is '8', not hidden_size / num_attention_heads"},
    {"nemotron", "'hidden_act': 'silu'", "activation that is not supported"},
    {"granite", "'logits_scaling': 0", "logits_scaling is '0', a number that this model cannot have"},
    {"gemma2", "'sliding_window': null", "sliding_window is 'null', but transformers cannot run"},
    {"gemma2", "'final_logit_softcapping': 0", "final_logit_softcapping is '0', a number that"},
    {"gemma3_text", "'attn_logit_softcapping': 50",
     "attn_logit_softcapping is '50', which transformers does"},
    {"gemma3_text", "'sliding_window_pattern': 0", "sliding_window_pattern is '0', not a positive"},
    {"gemma3_text", "'rope_parameters': {'rope_theta': 50}", "needs an object for each kind of layer in it"},
    {"gemma3_text", "'rope_parameters': {'sliding_attention': {'rope_type': 'linear', 'factor': 2}}",
     "positions can only be unscaled"},
    {"gemma3_text", "'rope_scaling': {'rope_type': 'linear', 'factor': 2}, 'rope_parameters': {}",
     "but rope_parameters is also present"},
    {"gemma3_text", "'rope_scaling': {'type': 'linear', 'factor': 2}",
     "transformers reads rope_type, not type"},
    {"glm4_moe", "'num_experts_per_tok': 1",
     "norm_topk_prob is 'missing', but must be false if a token has one expert"},
    {"glm4_moe", "'n_shared_experts': 4611686018427387904",
     "n_shared_experts is '4611686018427387904', more than is supported"},
    {"glm4_moe", "'n_shared_experts': 2305843009213693953", "more than is supported"},
    {"glm4_moe", "'n_group': 2, 'topk_group': 4611686018427387905",
     "topk_group is '4611686018427387905', more than n_group"},
    {"glm4_moe", "'norm_topk_prob': false", "norm_topk_prob is 'false'"},
    {"glm4_moe", "'first_k_dense_replace': -1", "first_k_dense_replace is '-1'"},
    {"gpt_neox", "'attention_bias': false", "attention_bias is 'false'"},
    {"gpt_neox", "'head_dim': 8", "head_dim is '8', not hidden_size / num_attention_heads"},
    {"bloom", "'n_head': 4", "num_attention_heads is '2', but it contradicts n_head"},
    {"bloom", "'num_attention_heads': 3", "hidden_size is '8', not a multiple of num_attention_heads"},
    {"bloom", "'apply_residual_connection_post_layernorm': true", "which is not supported"},
    {"mpt", "'attn_config': 1", "attn_config is '1', not an object"},
    {"mpt", "'attn_config': {'alibi': false}",
     "alibi in attn_config is 'false', which transformers does not"},
    {"mpt", "'attn_config': {'clip_qkv': 6}", "clip_qkv in attn_config is '6', but queries, keys"},
    {"mpt", "'attn_config': {'alibi_bias_max': 16}", "alibi_bias_max in attn_config is '16', which"},
    {"mpt", "'attn_config': {'attn_pdrop': -1}", "attn_pdrop in attn_config is '-1', a number that"},
    {"mpt", "'logit_scale': 2", "logit_scale is '2', which transformers does not apply"},
    {"falcon", "'alibi': true", "alibi is 'true', which is not supported"},
    {"falcon", "'n_embed': 16", "n_embed is '16', but it contradicts hidden_size"},
    {"falcon", "'new_decoder_architecture': true, 'parallel_attn': false", "is always parallel"},
    {"falcon", "'new_decoder_architecture': true, 'num_ln_in_parallel_attn': 3", "is '3', neither 1 nor 2"},
    {"falcon", "'num_ln_in_parallel_attn': 2", "but new_decoder_architecture is false"},
    {"falcon", "'multi_query': false, 'num_kv_heads': 1", "each head has a key"},
    {"phi3", "'rope_scaling': {'type': 'longrope', 'short_factor': [1, 1]}",
     "without the lists of positive numbers"},
    {"phi3", "'rope_scaling': {'type': 'longrope', 'short_factor': [1, '1'], 'long_factor': [2, 2]}",
     "without the lists of positive numbers"},
    {"phi3", "'rope_scaling': {'type': 'longrope', 'short_factor': [], 'long_factor': [2, 2]}",
     "without the lists of positive numbers"},
    {"phi3",
     "'rope_scaling': {'type': 'longrope', 'short_factor': [1], 'long_factor': [2], 'attention_factor': 0}",
     "whose attention factor"},
    {"phi3", "'rope_scaling': {'type': 'linear', 'factor': 2}", "(default and longrope are known)"},
    {"seed_oss", "'mlp_bias': true", "mlp_bias is 'true', which is not supported"},
    {"smollm3", "'no_rope_layers': [1]",
     "no_rope_layers is '[1]', not a list with a 0 or a 1 for each layer"},
    {"smollm3", "'no_rope_layers': [true, 1]", "not a list with a 0 or a 1 for each layer"},
    {"smollm3", "'no_rope_layers': 1", "no_rope_layers is '1', not a list with"},
    {"smollm3", "'no_rope_layer_interval': 0", "no_rope_layer_interval is '0', not a positive"},
    {"helium", "'head_dim': 8", "hidden_size is '8', not num_attention_heads * head_dim"},
    {"exaone4", "'sliding_window': null", "sliding_window is 'null', but transformers cannot run"},
    {"exaone4", "'sliding_window_pattern': 'LLLG'", "sliding_window_pattern is \"LLLG\", not a positive"},
    {"olmo3", "'sliding_window': null", "sliding_window is 'null', but transformers cannot run"},
    {"olmo3", "'rope_parameters': {'rope_theta': 50}", "needs an object for each kind of layer in it"},
    {"dots1", "'n_routed_experts': 4, 'n_shared_experts': 1",
     "norm_topk_prob is 'missing', but must be true if a token has several experts"},
    {"dots1", "'n_routed_experts': 4, 'norm_topk_prob': true",
     "n_shared_experts is 'missing', not a positive"},
    {"minimax_m2", "'num_experts_per_tok': 1", "num_experts_per_tok is '1', but this type"},
    {"minimax_m2", "'rotary_dim': 0.5", "rotary_dim is '0.5', not a positive"},
    {"granitemoeshared", "'shared_intermediate_size': -1", "shared_intermediate_size is '-1'"},
    {"ministral", "'sliding_window': null, 'head_dim': 4",
     "sliding_window is 'null', but transformers cannot run"},
    {"ministral", "'head_dim': null", "head_dim is 'null', not a positive"},
    {"ministral3", "'rope_parameters': {'rope_type': 'yarn', 'factor': 2}",
     "this type of model needs llama_4_scaling_beta and original_max_position_embeddings in it"},
    {"ministral3", "'rope_parameters': {'llama_4_scaling_beta': 1, 'original_max_position_embeddings': 1.5}",
     "original_max_position_embeddings in rope_parameters is '1.5', not a whole number of positions"},
    {"phimoe", "'num_experts_per_tok': 1", "num_experts_per_tok is '1', which is not supported"},
    {"phimoe",
     "'rope_scaling': {'type': 'longrope', 'short_factor': [1, 1], 'long_factor': [1, 1], 'long_mscale': 1, "
     "'short_mscale': 2}",
     "whose short_mscale and long_mscale must be the same positive number"},
    {"iquestcoder", "'clip_qkv': 8", "clip_qkv is '8', but queries, keys and values cannot be clipped"},
    {"exaone", "'num_layers': 3", "num_layers is '3', but it contradicts its other name"},
    {"granitemoehybrid", "'layer_types': ['attention', 'odd']",
     "not a list with linear_attention or full_attention"},
    {"granitemoehybrid", "'layer_types': ['attention']",
     "not a list with linear_attention or full_attention"},
    {"granitemoehybrid", "'layers_block_type': ['mamba', 'mamba'], 'layer_types': ['mamba', 'attention']",
     "but it contradicts layer_types"},
    {"granitemoehybrid", "'mamba_n_heads': 4", "rms_norm_eps is 'missing', but only 0.00001"},
    {"falcon_h1", "'mamba_n_heads': 4", "whose layers run attention and Mamba-2 in parallel"},
    {"bamba", "'mamba_n_heads': 4, 'mamba_d_head': 4, 'attn_layer_indices': [1], 'z_loss_coefficient': 0.5",
     "z_loss_coefficient is '0.5', but a loss"},
    {"bamba", "'mamba_n_heads': 4, 'attn_layer_indices': [1, 0]", "needs at least one Mamba-2 layer"},
    {"bamba", "'mamba_n_heads': 4, 'attn_layer_indices': 1", "attn_layer_indices is '1', not a list"},
    {"bamba", "'mamba_n_heads': 4, 'mamba_d_head': 'wide'", "mamba_d_head is \"wide\", not a positive"},
    {"bamba", "'mamba_n_heads': 1000", "mamba_d_head is '0', not a positive"},
    {"bamba", "'mamba_n_heads': 4, 'mamba_expand': 4611686018427387904",
     "mamba_d_head is '0', not a positive"},
    {"mamba2", "'num_heads': 4, 'head_dim': 4, 'expand': 3",
     "expand is '3', but expand * hidden_size is not"},
    {"mamba2", "'num_heads': 4, 'head_dim': 4, 'hidden_act': 'gelu'", "hidden_act is \"gelu\", but Mamba-2"},
    {"mamba2", "'layer_norm_epsilon': 0.5", "layer_norm_epsilon is '0.5', but only 0.00001"},
    {"mamba2", "'num_heads': 4, 'head_dim': 4, 'time_step_limit': [0, 0.1]",
     "not a lower limit and infinity"},
    {"mamba2", "'num_heads': 4, 'head_dim': 4, 'time_step_limit': [-1, 'Infinity']",
     "a number that this model"},
    {"mamba2", "'num_heads': 4, 'head_dim': 4, 'time_step_limit': 0",
     "time_step_limit is '0', not a lower limit"},
    {"mamba2", "'num_heads': 9223372036854775807", "but expand * hidden_size is not num_heads * head_dim"},
    {"mamba2", "'conv_kernel': 3", "conv_kernel is '3', a number that is not supported"},
    {"nemotron_h", "'layers_block_type': ['linear_attention', 'odd']", "layers_block_type is"},
    {"nemotron_h", "'layers_block_type': 'M'", "not a list of linear_attention, full_attention, mlp and moe"},
    {"nemotron_h", "'pad_token_id': 0", "layers_block_type is 'missing', not a list of linear_attention"},
    {"nemotron_h", "'hybrid_override_pattern': 'MG'",
     "hybrid_override_pattern is \"MG\", but only the letters"},
    {"nemotron_h", "'hybrid_override_pattern': 'M', 'mamba_dt_min': 1, 'time_step_min': 2",
     "mamba_dt_min is '1', but it contradicts its other name"},
    {"nemotron_h", "'hybrid_override_pattern': 'M', 'tie_word_embeddings': true",
     "tie_word_embeddings is 'true'"},
    {"gpt_bigcode", "'multi_query': false", "multi_query is 'false', which is not supported"},
    {"gpt_neo", "'num_layers': 2, 'num_heads': 2, 'attention_types': [[['global', 'odd'], 1]]",
     "not a list that names global or local for each layer"},
    {"gpt_neo", "'num_layers': 2, 'num_heads': 2, 'attention_types': [[['global'], 9223372036854775807]]",
     "not a list that names global or local for each layer"},
    {"cohere", "'logit_scale': 0", "logit_scale is '0', a number that this model cannot have"},
    {"cohere", "'use_qk_norm': true", "use_qk_norm is 'true'"},
    {"cohere2", "'sliding_window': null", "sliding_window is 'null', but transformers cannot run"},
    {"olmoe", "'clip_qkv': 8", "clip_qkv is '8', but queries, keys and values cannot be clipped"},
    {"phi", "'qk_layernorm': true", "qk_layernorm is 'true'"},
    {"opt", "'ffn_dim': 16, 'word_embed_proj_dim': 4",
     "word_embed_proj_dim is '4', but it contradicts hidden_size"},
    {"opt", "'ffn_dim': 16, 'do_layer_norm_before': false", "do_layer_norm_before is 'false'"},
    {"gpt2", "'scale_attn_by_inverse_layer_idx': true", "scale_attn_by_inverse_layer_idx"},
    {"gpt2", "'n_embd': 4611686018427387904, 'n_head': 1",
     "n_embd is '4611686018427387904', more than is supported"},
    {"falcon", "'hidden_size': 4611686018427387904", "hidden_size is '4611686018427387904', more than"},
    {"gpt2", "'layer_types': ['odd']", "layer_types has 'odd' for layer 0"},
    {"gpt2", "'hidden_size': 16", "hidden_size is '16', but it contradicts"},
};

/* The second of two equal keys is dropped, so a key in `keys` replaces the default. */
static char *small_model(const char *type, const char *keys) {
    static const char LLAMA_KEYS[] =
        "{'num_hidden_layers': 2, 'hidden_size': 8, 'num_attention_heads': 2, 'intermediate_size': 16, "
        "'vocab_size': 9, 'max_position_embeddings': 16, 'num_experts': 4, 'num_experts_per_tok': 2, "
        "'moe_intermediate_size': 8}",
                      GPT2_KEYS[] =
                          "{'n_layer': 1, 'n_embd': 8, 'n_head': 2, 'n_positions': 9, 'vocab_size': 9}";
    char *own = mem_printf("{%s}", keys),
         *usual = mem_strdup(strcmp(type, "gpt2") && strcmp(type, "gpt_bigcode") ? LLAMA_KEYS : GPT2_KEYS);
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
    write_text(path, text);
    return hf_config_import(path, HF_TYPES, conf);
}

TEST(config_json_is_not_trusted) {
    static const char *const texts[][2] = {
        {"", "is not JSON"},
        {"[]", "not a JSON object"},
        {"{}", "model_type is 'missing'"},
        {"{\"model_type\":7}", "model_type is '7'"},
        {"{\"model_type\":\"llama\"}", "vocab_size is 'missing'"},
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

/* If the number of groups is null, transformers gives each head its own keys. If the number is missing, transformers
 * uses the default. */
static const struct {
    const char *type, *keys, *lines; /* the lines of the options */
} READ[] = {
    {"llama", "'num_key_value_heads': null", "\nnum-query-groups = 2\n"},
    {"mistral", "'num_key_value_heads': null", "\nnum-query-groups = 2\n"},
    {"mixtral", "'num_key_value_heads': null", "\nnum-query-groups = 2\n"},
    {"qwen2", "'num_key_value_heads': null", "\nnum-query-groups = 2\n"},
    {"qwen3", "'num_key_value_heads': null", "\nnum-query-groups = 2\n"},
    {"llama", "'rope_scaling': {'type': 'yarn', 'factor': 2}",
     "\nyarn-beta-fast = 32\nyarn-beta-slow = 1\nno-yarn-correction-range-round-to-int = false\n"},
    {"llama", "'rope_scaling': {'type': 'yarn', 'factor': 2, 'truncate': false}",
     "\nno-yarn-correction-range-round-to-int = true\n"},
};

TEST(missing_and_null_keys_have_the_defaults_of_transformers) {
    char *scratch = scratch_new_in_memory(), *path = mem_printf("%s/config.json", scratch);
    Str conf = {0};
    for (size_t i = 0; i < sizeof READ / sizeof *READ; i++) {
        char *text = small_model(READ[i].type, READ[i].keys);
        assert_ok(import_text(path, text, &conf));
        if (!strstr(conf.s, READ[i].lines)) fail_msg("%s: %s", READ[i].keys, conf.s);
        free(text);
    }
    str_free(&conf);
    free(path);
    scratch_remove(scratch);
}
