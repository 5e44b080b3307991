#include "unit/cmocka_all.h"

#include <jansson.h>

#include "ckpt/hf/config.h"
#include "ckpt/hf/type.h"
#include "unit/ckpt/hf_models.h"
#include "unit/ckpt/model.h"

/* The classes whose tensor names differ from Llama's. */
static const struct {
    const char *architecture;
    HfFamily family;
} OTHERS[] = {{"GptOssForCausalLM", HF_GPT_OSS},
              {"GlmForCausalLM", HF_GLM},
              {"GPTJForCausalLM", HF_GPTJ},
              {"BloomForCausalLM", HF_BLOOM},
              {"MptForCausalLM", HF_MPT},
              {"HunYuanDenseV1ForCausalLM", HF_HUNYUAN},
              {"HunYuanMoEV1ForCausalLM", HF_HUNYUAN_MOE},
              {"Ernie4_5_MoeForCausalLM", HF_ERNIE_MOE},
              {"Llama4ForCausalLM", HF_LLAMA4},
              {"Glm4MoeLiteForCausalLM", HF_DEEPSEEK},
              {"SolarOpenForCausalLM", HF_GLM_MOE},
              {"ExaoneMoeForCausalLM", HF_EXAONE_MOE},
              {"MT5ForConditionalGeneration", HF_T5},
              {"OlmoeForCausalLM", HF_QWEN_MOE},
              {"PhiForCausalLM", HF_PHI},
              {"PhimoeForCausalLM", HF_MIXTRAL},
              {"PersimmonForCausalLM", HF_PERSIMMON},
              {"ApertusForCausalLM", HF_APERTUS},
              {"HyperCLOVAXForCausalLM", HF_HYPERCLOVAX},
              {"BioGptForCausalLM", HF_BIOGPT},
              {"GPTNeoForCausalLM", HF_GPT_NEO},
              {"YoutuForCausalLM", HF_DEEPSEEK},
              {"GraniteMoeHybridForCausalLM", HF_GRANITE_HYBRID},
              {"BambaForCausalLM", HF_BAMBA},
              {"Qwen3NextForCausalLM", HF_QWEN_NEXT},
              {"Qwen3_5ForCausalLM", HF_QWEN_3_5},
              {"Qwen3_5MoeForCausalLM", HF_QWEN_3_5},
              {"Mamba2ForCausalLM", HF_MAMBA},
              {"NemotronHForCausalLM", HF_MAMBA},
              {"GPTBigCodeForCausalLM", HF_BIGCODE},
              {"OPTForCausalLM", HF_OPT},
              {"Olmo3ForCausalLM", HF_OLMO2},
              {"FlexOlmoForCausalLM", HF_OLMO2},
              {"Dots1ForCausalLM", HF_GLM_MOE},
              {"MiniMaxM2ForCausalLM", HF_MINIMAX},
              {"GraniteMoeForCausalLM", HF_GRANITE_MOE},
              {"GraniteMoeSharedForCausalLM", HF_GRANITE_MOE},
              {"VaultGemmaForCausalLM", HF_GEMMA},
              {"Glm4ForCausalLM", HF_GLM4},
              {"Exaone4ForCausalLM", HF_OLMO2},
              {"Phi3ForCausalLM", HF_PHI3},
              {"Olmo2ForCausalLM", HF_OLMO2},
              {"GPT2LMHeadModel", HF_GPT2},
              {"MixtralForCausalLM", HF_MIXTRAL},
              {"Starcoder2ForCausalLM", HF_STARCODER2},
              {"Gemma2ForCausalLM", HF_GEMMA},
              {"Gemma3ForCausalLM", HF_GEMMA},
              {"GPTNeoXForCausalLM", HF_GPT_NEOX},
              {"FalconForCausalLM", HF_FALCON},
              {"Qwen2MoeForCausalLM", HF_QWEN_MOE},
              {"Qwen3MoeForCausalLM", HF_QWEN_MOE},
              {"Glm4MoeForCausalLM", HF_GLM_MOE},
              {"DeepseekV2ForCausalLM", HF_DEEPSEEK},
              {"DeepseekV3ForCausalLM", HF_DEEPSEEK},
              {"BertForPreTraining", HF_BERT},
              {"RobertaForMaskedLM", HF_ROBERTA},
              {"BertForSequenceClassification", HF_BERT},
              {"MegatronBertForPreTraining", HF_MEGATRON_BERT},
              {"MegatronBertForMultipleChoice", HF_MEGATRON_BERT},
              {"T5ForConditionalGeneration", HF_T5}};

static HfFamily family_of(const char *architecture, const Config *c) {
    if (c->parallel_residual == PARALLEL_TWO_NORMS && !strcmp(architecture, "FalconForCausalLM"))
        return HF_FALCON_TWO_NORMS;
    if (c->hybrid_layer_pattern && !strcmp(architecture, "GraniteMoeHybridForCausalLM"))
        return HF_GRANITE_MAMBA;
    for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS; i++)
        if (!strcmp(architecture, OTHERS[i].architecture)) return OTHERS[i].family;
    return HF_LLAMA;
}

static void same_experts(const TestModel *a, const TestModel *b) {
    const Config *c = &a->config, *d = &b->config;
    assert_true(c->num_experts == d->num_experts);
    for (int64_t i = 0; i < c->num_layers; i++)
        assert_int_equal(a->config.derived.layer_moe[i], b->config.derived.layer_moe[i]);
    if (!a->config.derived.num_moe_layers) return;
#define SAME(field) assert_true(c->field == d->field)
    SAME(moe_router_topk), SAME(moe_router_score_function), SAME(moe_router_pre_softmax);
    SAME(moe_router_num_groups), SAME(moe_router_group_topk), SAME(moe_router_enable_expert_bias);
    SAME(moe_shared_expert_intermediate_size), SAME(moe_shared_expert_gate);
#undef SAME
    assert_true(a->config.derived.moe_ffn_hidden_size == b->config.derived.moe_ffn_hidden_size);
    const double x = c->moe_router_topk_scaling_factor, y = d->moe_router_topk_scaling_factor;
    assert_true(f64_or(x, 1) == f64_or(y, 1));
}

static void config_round_trip_of(const char *conf, const char *architecture) {
    TestModel a = {0}, b = {0};
    Str json = {0}, back = {0};
    HfFamily family;
    char *scratch = scratch_new(), *path = mem_printf("%s/config.json", scratch);
    test_model_parse(&a, conf);
    assert_ok(hf_config_export(&a.config, F32, NULL, &json, &family));
    json_t *root = json_loadb(json.s, json.len, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(root);
    assert_string_equal(json_string_value(json_array_get(json_object_get(root, "architectures"), 0)),
                        architecture);
    assert_int_equal(family, family_of(architecture, &a.config));
    json_decref(root);
    assert_ok(file_write_atomic(path, json.s, json.len));
    assert_ok(hf_config_import(path, HF_TYPES, &back));
    test_model_parse(&b, back.s);
    const Config *c = &a.config, *d = &b.config;
#define SAME(field) assert_true(c->field == d->field)
    SAME(num_layers), SAME(mtp_num_layers), SAME(hidden_size), SAME(num_attention_heads),
        SAME(position_embedding_type), SAME(rotary_base), SAME(rotary_percent), SAME(normalization),
        SAME(norm_epsilon), SAME(apply_layernorm_1p), SAME(add_bias_linear), SAME(qk_layernorm),
        SAME(untie_embeddings_and_output_weights), SAME(hidden_dropout), SAME(attention_dropout),
        SAME(use_rope_scaling), SAME(rope_scaling_factor), SAME(rope_scaling_low_freq_factor),
        SAME(rope_scaling_high_freq_factor), SAME(rope_scaling_original_max_position_embeddings);
    assert_int_equal(c->add_bias_linear || c->add_qkv_bias, d->add_bias_linear || d->add_qkv_bias);
#undef SAME
    const Derived *x = &a.config.derived, *y = &b.config.derived;
#define SAME(field) assert_true(x->field == y->field)
    SAME(ffn_hidden_size), SAME(kv_channels), SAME(num_query_groups), SAME(rotary_dim), SAME(vocab_size);
    SAME(activation), SAME(logits_scaling);
    if (!config_is_unlimited(c)) SAME(max_position_embeddings);
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

static void expect_no_export(const char *conf, const char *why) {
    TestModel m = {0};
    Str json = {0};
    HfFamily family;
    test_model_parse(&m, conf);
    assert_err(hf_config_export(&m.config, F32, NULL, &json, &family), "cannot be exported", why);
    args_free(&m.args);
    arena_free(m.arena);
    str_free(&json);
}

/* Golden cases of models that transformers does not have: the oracle modifies a transformers model. */
static const char *not_exported(const char *dir) {
    static const char *const CASES[][2] = {{"mistral-sinks", "softmax_type is"},
                                           {"bert-layouts", "gelu-erf in its head"},
                                           {"bert-rope", "for the nearest type, bert, the reason"},
                                           {"llama-mtp", "mtp_num_layers is"},
                                           {"mtp-layouts", "mtp_num_layers is"},
                                           {"mtp-repeated", "mtp_num_layers is"},
                                           {"bert-no-binary-head", "type_vocab_size"},
                                           {"t5-megatron", "for the nearest type, t5, the reason"}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        if (strstr(dir, CASES[i][0])) return CASES[i][1];
    return NULL;
}

/* Each golden case's provenance names its transformers class. */
static void config_round_trip(const char *dir) {
    Str conf = slurp(dir, "run.conf"), provenance = slurp(dir, "provenance.json");
    json_t *root = json_loadb(provenance.s, provenance.len, 0, NULL);
    if (not_exported(dir))
        expect_no_export(conf.s, not_exported(dir));
    else
        config_round_trip_of(conf.s, json_string_value(json_object_get(root, "model")));
    json_decref(root);
    str_free(&conf), str_free(&provenance);
}

TEST(config_json_round_trips) {
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
    config_round_trip_of(BASE LLAMA EXPERTS GLM
                         "moe-shared-expert-intermediate-size = 40\nmoe-router-topk = 1\n",
                         "Glm4MoeForCausalLM");
    config_round_trip_of(BASE "softmax-scale = 1\n", "GPT2LMHeadModel");
    config_round_trip_of(T5 "attention-dropout = 0\nlogits-scaling = 1\n", "T5ForConditionalGeneration");
    config_round_trip_of(BASE "activation = gelu-erf\nattention-dropout = 0.3\n", "GPT2LMHeadModel");
}

/* An export writes the stored type even if an earlier type fits. If the type cannot express an option, the error names
 * the option. */
TEST(gates_of_t5_round_trip) {
    static const char *const GATES[] = {"swiglu", "geglu-tanh", "geglu-erf"};
    for (size_t i = 0; i < sizeof GATES / sizeof *GATES; i++) {
        char *text =
                 mem_printf(T5 "attention-dropout = 0\nffn-hidden-size = 40\nactivation = %s\n", GATES[i]),
             *conf = last_lines(text);
        config_round_trip_of(conf, "T5ForConditionalGeneration");
        free(conf), free(text);
    }
}

TEST(a_stored_type_is_written) {
    static const char fits[] = BASE LLAMA "ffn-hidden-size = 40\n",
                      biased[] = BASE LLAMA "add-qkv-bias = true\n";
    config_round_trip_of(fits, "LlamaForCausalLM");
    TestModel m = {0};
    Str json = {0}, back = {0};
    HfFamily family;
    char *scratch = scratch_new_in_memory(), *path = mem_printf("%s/config.json", scratch),
         *mistral = mem_printf("%shf-model-type = mistral\n", fits),
         *llama = mem_printf("%shf-model-type = llama\n", biased);
    config_round_trip_of(mistral, "MistralForCausalLM");
    test_model_parse(&m, mistral);
    assert_ok(hf_config_export(&m.config, F32, NULL, &json, &family));
    write_text(path, json.s);
    assert_ok(hf_config_import(path, HF_TYPES, &back));
    assert_non_null(strstr(back.s, "hf-model-type = mistral\n"));
    args_free(&m.args), arena_free(m.arena);
    test_model_parse(&m, llama);
    assert_err(hf_config_export(&m.config, F32, NULL, &json, &family), "cannot be exported as llama",
               "add_qkv_bias is 'true' in the checkpoint and 'false' after import", "--hf-model-type none");
    args_free(&m.args), arena_free(m.arena);
    str_free(&json), str_free(&back);
    free(path), free(mistral), free(llama);
    scratch_remove(scratch);
}

TEST(models_that_hf_lacks_are_refused) {
    static const char *const confs[][2] = {
        {BASE LLAMA "rotary-interleaved = true\nqk-layernorm = true\n",
         "the nearest type, qwen3, the reason is: config.json would import as a different model: "
         "rotary_interleaved is 'true'"},
        {BASE LLAMA "qk-layernorm = true\nadd-qkv-bias = true\n",
         "the nearest type, qwen2, the reason is: config.json would import as a different model: "
         "qk_layernorm is 'true'"},
        {BASE "normalization = RMSNorm\n", "position_embedding_type is \"learned_absolute\""},
        {BASE "swiglu = true\n", "activation_function is"},
        {BASE LLAMA "apply-layernorm-1p = true\n", "apply_layernorm_1p is 'true'"},
        {BASE LLAMA "kv-channels = 8\nrotary-percent = 0.5\nadd-qkv-bias = true\n", "nearest type"},
        {BASE "position-embedding-type = none\n", "position_embedding_type is"},
        {BASE LLAMA "window-size = 7,0\nwindow-attn-skip-freq = 2\nhf-model-type = mistral\n",
         "config.json would import as a different model: window_attn_skip_freq"},
        {BASE LLAMA EXPERTS "moe-expert-capacity-factor = 1\n", "moe_expert_capacity_factor is"},
        {BASE LLAMA EXPERTS "moe-layer-freq = 2\n", "mixtral"},
        {BASE LLAMA EXPERTS "moe-router-load-balancing-type = sinkhorn\n", "sinkhorn does"},
        {BASE LLAMA EXPERTS "moe-router-load-balancing-type = quantile_balancing\n",
         "quantile_balancing does"},
        {BASE LLAMA EXPERTS GLM, "moe_router_score_function is"},
        {BASE LLAMA EXPERTS GLM "moe-shared-expert-intermediate-size = 30\n",
         "moe_shared_expert_intermediate_size is '30'"},
        {BASE LLAMA EXPERTS GLM "moe-shared-expert-intermediate-size = 40\nmoe-layer-freq = [1,0,1,1]\n",
         "glm4_moe"},
        {BASE LLAMA EXPERTS "moe-router-topk-scaling-factor = 2\n",
         "the nearest type, mixtral, the reason is: config.json would import as a different model: "
         "moe_router_topk_scaling_factor is '2.0' in the checkpoint"},
        {BASE LLAMA EXPERTS "moe-shared-expert-intermediate-size = 40\nadd-qkv-bias = true\n",
         "nearest type"},
        {BASE "num-experts = 4\ndisable-bias-linear = true\n", "nearest type"},
        {YARN "normalization = RMSNorm\nswiglu = true\ndisable-bias-linear = true\nffn-hidden-size = 40\n"
              "rope-temperature-scale = 0.5\nrope-temperature-floor = 3\n",
         "the nearest type, ministral3, the reason is: config.json would import as a different model: "
         "yarn_original_max_position_embeddings is"},
        {BASE LLAMA "softmax-type = learnable\n", "softmax_type is \"learnable\""},
        {BASE LLAMA "softmax-type = off-by-one\n", "softmax_type is \"off-by-one\""},
        {BASE "softmax-type = learnable\n", "softmax_type is \"learnable\""},
        {BASE "model = t5\ndecoder-seq-length = 8\n", "for the nearest type, t5, the reason"},
    };
    for (size_t i = 0; i < sizeof confs / sizeof *confs; i++) expect_no_export(confs[i][0], confs[i][1]);
}

/* Each type with each model family, with and without experts. */
TEST(a_type_of_another_kind_is_refused) {
    static const char *const models[][2] = {{"gpt", "activation = gelu-erf\n"},
                                            {"bert", "model = bert\n"},
                                            {"t5", "model = t5\ndecoder-seq-length = 8\n"}};
    for (int i = 0; i < HF_TYPES; i++) {
        const char *type = HF_TYPE[i].name, *architecture = HF_TYPE[i].architecture,
                   *of = strcasestr(type, "bert")     ? "bert"
                         : strstr(architecture, "T5") ? "t5"
                                                      : "gpt";
        const bool mixture = strstr(architecture, "Moe") || strstr(architecture, "Mixtral") ||
                             strstr(architecture, "FlexOlmo") || strstr(architecture, "Dots1") ||
                             strstr(architecture, "MiniMax") || strstr(architecture, "Deepseek") ||
                             strstr(architecture, "Phimoe") || strstr(architecture, "GptOss") ||
                             strstr(architecture, "Llama4") || strstr(architecture, "SolarOpen") ||
                             strstr(architecture, "MoEV1") || strstr(architecture, "4_5_Moe") ||
                             strstr(architecture, "Olmoe") || strstr(architecture, "NemotronH") ||
                             strstr(architecture, "Next");
        char conf[1000], message[100];
        for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
            snprintf(conf, sizeof conf, BASE "%shf-model-type = %s\n", models[m][1], type);
            snprintf(message, sizeof message, "this type describes a --model %s, but the model is a %s", of,
                     models[m][0]);
            if (strcmp(of, models[m][0])) expect_no_export(conf, message);
        }
        snprintf(conf, sizeof conf, BASE LLAMA "%shf-model-type = %s\n", mixture ? "" : EXPERTS, type);
        if (!strcmp(of, "gpt") && !strstr(architecture, "Hybrid")) /* a Granite 4 may have experts */
            expect_no_export(conf, mixture ? "this type has experts, but" : "this type has no experts, but");
    }
}

/* ---- what the check of an export compares ---- */

/* Two models that differ in only one option. */
static const struct {
    const char *field, *base, *change;
} DIFFERENCES[] = {
    {"softmax_scale", ROPE, "use-mup = true"},
    {"softmax_scale", MUP, "mup-base-head-dim = 4"},
    {"softmax_scale", MUP, "mup-attn-scale-power = 0.5"},
    {"logits_scaling", MUP, "mup-base-hidden-size = 8"},
    {"logits_scaling", MUP, "mup-output-mult = 2"},
    {"embedding_multiplier", MUP, "mup-embedding-mult = 2"},
    {"mup_embedding_mult", BASE "use-mup = true\n", "mup-embedding-mult = 2"},
    {"num_layers", ROPE, "num-layers = 5"},
    {"mtp_num_layers", ROPE, "mtp-num-layers = 1"},
    {"mtp_use_repeated_layer", ROPE "mtp-num-layers = 2\n", "mtp-use-repeated-layer = true"},
    {"hybrid_layer_pattern", ROPE, "hybrid-layer-pattern = *-*-"},
    {"mamba_state_dim", HYBRID, "mamba-state-dim = 6"},
    {"mamba_head_dim", HYBRID "mamba-num-heads = 8\n", "mamba-head-dim = 5"},
    {"mamba_num_groups", HYBRID, "mamba-num-groups = 4"},
    {"mamba_num_heads", HYBRID, "mamba-num-heads = 4"},
    {"mamba_dt_min", HYBRID, "mamba-dt-min = 0.01"},
    {"experimental_attention_variant", ROPE "linear-attention-freq = 2\n",
     "experimental-attention-variant = gdn"},
    {"linear_attention_freq", LINEAR, "linear-attention-freq = 3"},
    {"linear_conv_kernel_dim", LINEAR, "linear-conv-kernel-dim = 3"},
    {"linear_key_head_dim", LINEAR, "linear-key-head-dim = 4"},
    {"linear_value_head_dim", LINEAR, "linear-value-head-dim = 4"},
    {"linear_num_key_heads", LINEAR, "linear-num-key-heads = 2"},
    {"linear_num_value_heads", LINEAR, "linear-num-value-heads = 16"},
    {"attention_output_gate", ROPE, "attention-output-gate = true"},
    {"hidden_size", ROPE "kv-channels = 6\n", "hidden-size = 48"},
    {"ffn_hidden_size", ROPE, "ffn-hidden-size = 41"},
    {"num_attention_heads", ROPE "kv-channels = 6\ngroup-query-attention = true\n",
     "num-attention-heads = 8"},
    {"kv_channels", ROPE, "kv-channels = 8"},
    {"num_query_groups", ROPE "group-query-attention = true\n", "num-query-groups = 2"},
    {"max_position_embeddings", ROPE, "max-position-embeddings = 20"},
    {"position_embedding_type", BASE, "position-embedding-type = none"},
    {"alibi_bias_max", BASE "position-embedding-type = alibi\n", "alibi-bias-max = 4"},
    {"rotary_base", ROPE, "rotary-base = 10001"},
    {"rotary_percent", ROPE "kv-channels = 8\n", "rotary-percent = 0.5"},
    {"rotary_interleaved", ROPE, "rotary-interleaved = true"},
    {"rotary_seq_len_interpolation_factor", ROPE, "rotary-seq-len-interpolation-factor = 2"},
    {"no_rope_freq", ROPE, "no-rope-freq = 2"},
    {"no_rope_temperature_scale", MIXED, "no-rope-temperature-scale = 0.2"},
    {"no_rope_temperature_floor", MIXED, "no-rope-temperature-floor = 4"},
    {"rope_temperature_scale", TEMPERED, "rope-temperature-scale = 0.2"},
    {"rope_temperature_floor", TEMPERED, "rope-temperature-floor = 4"},
    {"rope_local_base_freq", WINDOWS, "rope-local-base-freq = 100"},
    {"rope_short_factor", LONG, "rope-short-factor = 1 2 4"},
    {"rope_long_factor", LONG, "rope-long-factor = 1 2 4"},
    {"rope_attention_factor", LONG, "rope-attention-factor = 2"},
    {"rotary_scaling_factor", YARN, "rotary-scaling-factor = 3"},
    {"yarn_original_max_position_embeddings", YARN, "yarn-original-max-position-embeddings = 64"},
    {"yarn_beta_fast", YARN, "yarn-beta-fast = 30"},
    {"yarn_beta_slow", YARN, "yarn-beta-slow = 2"},
    {"yarn_correction_range_round_to_int", YARN, "no-yarn-correction-range-round-to-int = true"},
    {"mscale", YARN, "mscale = 0.7"},
    {"mscale_all_dim", YARN, "mscale-all-dim = 0.7"},
    {"rope_dynamic_factor", DYNAMIC, "rope-dynamic-factor = 3"},
    {"rope_scaling_original_max_position_embeddings", DYNAMIC,
     "rope-scaling-original-max-position-embeddings = 64"},
    {"use_rope_scaling", ROPE, "use-rope-scaling = true"},
    {"rope_scaling_factor", SCALED, "rope-scaling-factor = 4"},
    {"rope_scaling_low_freq_factor", SCALED, "rope-scaling-low-freq-factor = 2"},
    {"rope_scaling_high_freq_factor", SCALED, "rope-scaling-high-freq-factor = 5"},
    {"rope_scaling_original_max_position_embeddings", SCALED,
     "rope-scaling-original-max-position-embeddings = 64"},
    {"rope_scaling_original_max_position_embeddings", LONG,
     "rope-scaling-original-max-position-embeddings = 64"},
    {"normalization", BASE, "normalization = RMSNorm"},
    {"norm_epsilon", ROPE, "norm-epsilon = 1.001e-5"},
    {"apply_layernorm_1p", BASE, "apply-layernorm-1p = true"},
    {"norm_weight", BASE, "disable-norm-weight = true"},
    {"norm_bias", BASE, "disable-norm-bias = true"},
    {"add_output_layer_bias", BASE, "add-output-layer-bias = true"},
    {"activation", BASE, "activation = gelu-erf"},
    {"activation_func_clamp_value", MIXTURE, "activation-func-clamp-value = 7"},
    {"glu_linear_offset", BASE "activation = quick-geglu\n", "glu-linear-offset = 1"},
    {"add_bias_linear",
     BASE "add-qkv-bias = true\nadd-attn-proj-bias = true\nadd-mlp-bias = true\nactivation = gelu-erf\n",
     "disable-bias-linear = true"},
    {"add_qkv_bias", ROPE, "add-qkv-bias = true"},
    {"add_mlp_bias", ROPE, "add-mlp-bias = true"},
    {"add_attn_proj_bias", ROPE, "add-attn-proj-bias = true"},
    {"qk_layernorm", ROPE, "qk-layernorm = true"},
    {"qk_layernorm_after_rope", ROPE "qk-layernorm = true\n", "qk-layernorm-after-rope = true"},
    {"qk_layernorm_whole", ROPE "qk-layernorm = true\n", "qk-layernorm-whole = true"},
    {"qk_l2_norm", ROPE, "qk-l2-norm = true"},
    {"qk_l2_norm_rope_layers_only", MIXED "qk-l2-norm = true\n", "qk-l2-norm-rope-layers-only = true"},
    {"attention_chunk_size", MIXED, "attention-chunk-size = 5"},
    {"multi_latent_attention", ROPE, "multi-latent-attention = true"},
    {"rope_type", MLA, "rope-type = rope"},
    {"q_lora_rank", MLA, "q-lora-rank = 8"},
    {"kv_lora_rank", MLA, "kv-lora-rank = 8"},
    {"qk_head_dim", MLA, "qk-head-dim = 120"},
    {"qk_pos_emb_head_dim", MLA, "qk-pos-emb-head-dim = 32"},
    {"v_head_dim", MLA, "v-head-dim = 120"},
    {"mla_rotary_interleaved", MLA, "no-mla-rotary-interleaved = true"},
    {"latent_norm_epsilon", MLA, "latent-norm-epsilon = 1e-6"},
    {"softmax_scale", MLA "rope-attention-factor = 1\nrotary-scaling-factor = 2\n", "mscale-all-dim = 1"},
    {"window_size", WINDOWS, "window-size = 8,0"},
    {"window_attn_skip_freq", WINDOWS, "window-attn-skip-freq = [0,1,1,1]"},
    {"softmax_type", ROPE, "softmax-type = off-by-one"},
    {"norm_placement", ROPE, "norm-placement = sandwich"},
    {"parallel_residual", ROPE, "parallel-residual = one-norm"},
    {"scale_embedding", ROPE, "scale-embedding = true"},
    {"embedding_layernorm", ROPE, "embedding-layernorm = true"},
    {"embedding_multiplier", ROPE, "embedding-multiplier = 12"},
    {"residual_multiplier", ROPE, "residual-multiplier = 0.22"},
    {"logits_scaling", ROPE, "logits-scaling = 8"},
    {"attn_logit_softcapping", ROPE, "attn-logit-softcapping = 50"},
    {"final_logit_softcapping", ROPE, "final-logit-softcapping = 30"},
    {"softmax_scale", ROPE, "softmax-scale = 0.0078125"},
    {"untie_embeddings_and_output_weights", ROPE, "untie-embeddings-and-output-weights = true"},
    {"vocab_size", ROPE, "vocab-size = 51"},
    {"model", BERT, "model = gpt"},
    {"bert_binary_head", BERT, "bert-no-binary-head = true"},
    {"num_token_types", BERT, "num-token-types = 3"},
    {"task", BERT, "task = RACE"},
    {"class_labels", BERT "task = labels\n", "class-labels = a b"},
    {"decoder_num_layers", T5, "decoder-num-layers = 3"},
    {"relative_attention_num_buckets", T5, "relative-attention-num-buckets = 8"},
    {"relative_attention_max_distance", T5, "relative-attention-max-distance = 64"},
    {"num_experts", MIXTURE, "num-experts = 4"},
    {"moe_layer_freq", MIXTURE "moe-layer-freq = [0,0,1,1]\n", "moe-layer-freq = [0,1,0,1]"},
    {"moe_ffn_hidden_size", MIXTURE, "moe-ffn-hidden-size = 24"},
    {"moe_router_topk", MIXTURE, "moe-router-topk = 3"},
    {"moe_router_score_function", MIXTURE, "moe-router-score-function = sigmoid"},
    {"moe_router_sparsemixer_eps", MIXTURE "moe-router-score-function = sparsemixer\n",
     "moe-router-sparsemixer-eps = 0.02"},
    {"moe_router_pre_softmax", MIXTURE, "moe-router-pre-softmax = true"},
    {"moe_router_topk_scaling_factor", MIXTURE, "moe-router-topk-scaling-factor = 1.5"},
    {"moe_router_num_groups", IN_GROUPS, "moe-router-num-groups = 2"},
    {"moe_router_group_topk", IN_GROUPS, "moe-router-group-topk = 4"},
    {"moe_router_group_score_topk", IN_GROUPS, "moe-router-group-score-topk = 1"},
    {"moe_router_enable_expert_bias", WITH_BIAS, "moe-router-enable-expert-bias = false"},
    {"moe_expert_capacity_factor", MIXTURE, "moe-expert-capacity-factor = 1"},
    {"moe_token_drop_policy", CAPACITY, "moe-token-drop-policy = position"},
    {"moe_shared_expert_intermediate_size", MIXTURE, "moe-shared-expert-intermediate-size = 40"},
    {"moe_shared_expert_gate", WITH_SHARE, "moe-shared-expert-gate = true"},
    {"activation_func_clamp_value", MIXTURE, "activation-func-clamp-value = 7"},
    {"glu_linear_offset", BASE "activation = quick-geglu\n", "glu-linear-offset = 1"},
    {"moe_apply_probs_on_input", MIXTURE, "moe-apply-probs-on-input = true"},
    {"moe_latent_size", MIXTURE, "moe-latent-size = 16"},
};
enum { N_DIFFERENCES = sizeof DIFFERENCES / sizeof *DIFFERENCES };

/* Options for training and memory, which are not exported; and options that are part of num_query_groups, activation,
 * softmax_scale or logits_scaling. */
static const char *const NOT_COMPARED[] = {"bias_gelu_fusion",
                                           "hf_model_type",
                                           "seq_length",
                                           "decoder_seq_length",
                                           "make_vocab_size_divisible_by",
                                           "group_query_attention",
                                           "hidden_dropout",
                                           "attention_dropout",
                                           "classifier_dropout",
                                           "use_mup",
                                           "mup_base_hidden_size",
                                           "mup_base_head_dim",
                                           "mup_attn_scale_power",
                                           "mup_output_mult"};

static bool is_not_compared(const char *field) {
    for (size_t i = 0; i < sizeof NOT_COMPARED / sizeof *NOT_COMPARED; i++)
        if (!strcmp(field, NOT_COMPARED[i])) return true;
    return false;
}

static Err compare(const char *conf, const char *change, Str *notes) {
    TestModel a = {0}, b = {0};
    char *both = mem_printf("%s%s\n", conf, change), *changed = last_lines(both);
    test_model_parse(&a, conf), test_model_parse(&b, changed);
    int differences;
    const Err e = hf_config_compare(&a.config, &b.config, notes, &differences);
    args_free(&a.args), args_free(&b.args);
    arena_free(a.arena), arena_free(b.arena);
    free(both), free(changed);
    return e;
}

TEST(every_option_of_a_model_is_compared) {
    Str notes = {0};
    for (int i = 0; i < N_DIFFERENCES; i++) {
        char *says = mem_printf("different model: %s is ", DIFFERENCES[i].field);
        assert_ok(compare(DIFFERENCES[i].base, "", &notes));
        assert_err(compare(DIFFERENCES[i].base, DIFFERENCES[i].change, &notes), says);
        free(says);
    }
    assert_int_equal(notes.len, 0);
    assert_ok(compare(ROPE, "hidden-dropout = 0.25\nattention-dropout = 0", &notes));
    assert_string_equal(
        notes.s,
        "note: hidden_dropout is '0.0' here, but '0.25' after import, because config.json has no key for it\n"
        "note: attention_dropout is '0.1' here, but '0.0' after import, because config.json has no key for "
        "it\n");
    str_free(&notes);
    for (int o = 0; o < OPTIONS; o++) {
        const char *field = config_field_name(o);
        if (!field || config_option_class(o) != CLASS_ARCH || is_not_compared(field)) continue;
        int i = 0;
        while (i < N_DIFFERENCES && strcmp(DIFFERENCES[i].field, field)) i++;
        if (i == N_DIFFERENCES) fail_msg("%s has no row in DIFFERENCES", field);
    }
}

TEST(what_says_the_same_in_other_words_is_equal) {
    static const char *const same[][2] = {
        {ROPE, "kv-channels = 6\nmax-position-embeddings = 16\nrotary-seq-len-interpolation-factor = 1"},
        {LONG, "rope-short-factor = 1.0 2.00 3e0\nmax-position-embeddings = 16\nseq-length = 8"},
        {ROPE, "rope-scaling-factor = 3\nwindow-size = 5,0\nwindow-attn-skip-freq = 1"},
        {ROPE, "group-query-attention = true\nnum-query-groups = 4\nmake-vocab-size-divisible-by = 8"},
        {BASE, "alibi-bias-max = 7\nrotary-base = 7\nadd-qkv-bias = true\nadd-attn-proj-bias = "
               "true\nadd-mlp-bias = "
               "true\nactivation = gelu-tanh"},
        {WINDOWS, "window-attn-skip-freq = [1,1,1,1]"},
        {ROPE "qk-l2-norm = true\n", "qk-l2-norm-rope-layers-only = true\nno-rope-temperature-scale = 0.1"},
        {ROPE, "rope-temperature-floor = 4"},
        {ROPE "no-rope-freq = 1\n", "rope-temperature-scale = 0.1"},
        {WINDOWS "window-attn-skip-freq = 2\n", "window-attn-skip-freq = [1,0]*2"},
        {ROPE, "num-experts = 4\nmoe-layer-freq = [0,0,0,0]\nmoe-router-topk = 3"},
        {MLA, "rope-type = yarn\nlatent-norm-epsilon = 1e-5\nkv-channels = 7\nnorm-epsilon = 1e-5"},
        {ROPE, "linear-num-key-heads = 2\nlinear-num-value-heads = 2\nlinear-key-head-dim = 2\n"
               "linear-value-head-dim = 2\nlinear-conv-kernel-dim = 2\nlinear-attention-freq = 2"},
        {LINEAR, "linear-attention-freq = [1,0]*2"},
        {ROPE "hybrid-layer-pattern = G-G-\n", "attention-output-gate = true"},
        {HYBRID, "hybrid-layer-pattern = M-|M*\nmamba-num-heads = 8"},
        {WITH_MAMBA "hybrid-layer-pattern = MMMM\n",
         "num-attention-heads = 3\nkv-channels = 7\nposition-embedding-type = none\nswiglu = false\n"
         "ffn-hidden-size = 41"},
        {MIXTURE, "ffn-hidden-size = 44\nmoe-layer-freq = [1,1,1,1]\nmoe-router-topk-scaling-factor = 1"},
    };
    Str notes = {0};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        assert_ok(compare(same[i][0], same[i][1], &notes));
    assert_int_equal(notes.len, 0);
}
