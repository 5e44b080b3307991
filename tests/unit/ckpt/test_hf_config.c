#include "unit/cmocka_all.h"

#include <jansson.h>

#include "ckpt/hf/config.h"
#include "ckpt/hf/type.h"
#include "unit/ckpt/model.h"

static HfFamily family_of(const char *architecture, bool two_norms) {
    const struct {
        const char *architecture;
        HfFamily family;
    } OTHERS[] = {{"GptOssForCausalLM", HF_GPT_OSS},
                  {"GlmForCausalLM", HF_GLM},
                  {"OlmoeForCausalLM", HF_QWEN_MOE},
                  {"PhiForCausalLM", HF_PHI},
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
                  {"FalconForCausalLM", two_norms ? HF_FALCON_TWO_NORMS : HF_FALCON},
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
    assert_int_equal(family, family_of(architecture, a.config.parallel_residual == PARALLEL_TWO_NORMS));
    json_decref(root);
    assert_ok(file_write_atomic(path, json.s, json.len));
    assert_ok(hf_config_import(path, &back));
    test_model_parse(&b, back.s);
    const Config *c = &a.config, *d = &b.config;
#define SAME(field) assert_true(c->field == d->field)
    SAME(num_layers), SAME(hidden_size), SAME(num_attention_heads), SAME(position_embedding_type),
        SAME(rotary_base), SAME(rotary_percent), SAME(normalization), SAME(norm_epsilon),
        SAME(apply_layernorm_1p), SAME(add_bias_linear), SAME(qk_layernorm),
        SAME(untie_embeddings_and_output_weights), SAME(hidden_dropout), SAME(attention_dropout),
        SAME(use_rope_scaling), SAME(rope_scaling_factor), SAME(rope_scaling_low_freq_factor),
        SAME(rope_scaling_high_freq_factor), SAME(rope_scaling_original_max_position_embeddings);
    assert_int_equal(c->add_bias_linear || c->add_qkv_bias, d->add_bias_linear || d->add_qkv_bias);
#undef SAME
    const Derived *x = &a.config.derived, *y = &b.config.derived;
#define SAME(field) assert_true(x->field == y->field)
    SAME(ffn_hidden_size), SAME(kv_channels), SAME(num_query_groups), SAME(rotary_dim), SAME(vocab_size);
    SAME(activation), SAME(logits_scaling);
    if (c->position_embedding_type != POSITION_RELATIVE) SAME(max_position_embeddings); /* T5 has no limit */
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

/* Golden cases of models that transformers does not have: the oracle modifies a model of transformers. */
static const char *not_exported(const char *dir) {
    static const char *const CASES[][2] = {
        {"mistral-sinks", "softmax_type is"},       {"mla-yarn", "latent attention without experts"},
        {"bert-layouts", "gelu-erf in its head"},   {"bert-rope", "as bert, the nearest type"},
        {"bert-no-binary-head", "type_vocab_size"}, {"t5-megatron", "as t5, the nearest type"}};
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

#define BASE                                                                                                 \
    "num-layers = 4\nhidden-size = 24\nnum-attention-heads = 4\nseq-length = 16\nvocab-size = "              \
    "50\nhidden-dropout = 0\n"
#define LLAMA                                                                                                \
    "position-embedding-type = rope\nnormalization = RMSNorm\nswiglu = true\ndisable-bias-linear = true\n"
#define LLAMA_POSITIONS "position-embedding-type = rope\n"
#define EXPERTS         "ffn-hidden-size = 40\nmoe-ffn-hidden-size = 20\nnum-experts = 8\n"
#define GEMMA2                                                                                               \
    "activation = geglu-tanh\napply-layernorm-1p = true\nnorm-placement = sandwich\nscale-embedding = "      \
    "true\n"
#define T5                                                                                                   \
    BASE "model = t5\nposition-embedding-type = relative\nnormalization = RMSNorm\ndisable-bias-linear = "   \
         "true\nactivation = relu\nsoftmax-scale = 1\ndecoder-seq-length = 8\n"
#define GLM "moe-router-score-function = sigmoid\nmoe-router-enable-expert-bias = true\n"

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
    config_round_trip_of(T5 "attention-dropout = 0\nlogits-scaling = 1\n", "T5ForConditionalGeneration");
    config_round_trip_of(BASE "activation = gelu-erf\nattention-dropout = 0.3\n", "GPT2LMHeadModel");
}

/* An export writes the stored type even if an earlier type fits. If the type cannot express an option, the error names
 * the option. */
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
    assert_ok(hf_config_import(path, &back));
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
         "qwen3, the nearest type, config.json would import as a different model: rotary_interleaved is "
         "'true'"},
        {BASE LLAMA "qk-layernorm = true\nadd-qkv-bias = true\n",
         "qwen2, the nearest type, config.json would import as a different model: qk_layernorm is 'true'"},
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
        {BASE LLAMA EXPERTS GLM "moe-shared-expert-intermediate-size = 40\nmoe-router-topk = 1\n",
         "nearest type"},
        {BASE LLAMA EXPERTS "moe-router-topk-scaling-factor = 2\n",
         "mixtral, the nearest type, config.json would import as a different model: "
         "moe_router_topk_scaling_factor is '2.0' in the checkpoint"},
        {BASE LLAMA EXPERTS "moe-shared-expert-intermediate-size = 40\nadd-qkv-bias = true\n",
         "nearest type"},
        {BASE "num-experts = 4\ndisable-bias-linear = true\n", "nearest type"},
        {BASE LLAMA "softmax-type = learnable\n", "softmax_type is \"learnable\""},
        {BASE LLAMA "softmax-type = off-by-one\n", "softmax_type is \"off-by-one\""},
        {BASE "softmax-type = learnable\n", "softmax_type is \"learnable\""},
        {BASE "model = t5\ndecoder-seq-length = 8\n", "as t5, the nearest type"},
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
                   *of = strcasestr(type, "bert")          ? "bert"
                         : !strncmp(architecture, "T5", 2) ? "t5"
                                                           : "gpt";
        const bool mixture = strstr(architecture, "Moe") || strstr(architecture, "Mixtral") ||
                             strstr(architecture, "FlexOlmo") || strstr(architecture, "Dots1") ||
                             strstr(architecture, "MiniMax") || strstr(architecture, "Deepseek") ||
                             strstr(architecture, "GptOss") || strstr(architecture, "Olmoe");
        char conf[1000], message[100];
        for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
            snprintf(conf, sizeof conf, BASE "%shf-model-type = %s\n", models[m][1], type);
            snprintf(message, sizeof message, "it is a type of --model %s, and this model is a %s", of,
                     models[m][0]);
            if (strcmp(of, models[m][0])) expect_no_export(conf, message);
        }
        snprintf(conf, sizeof conf, BASE LLAMA "%shf-model-type = %s\n", mixture ? "" : EXPERTS, type);
        if (!strcmp(of, "gpt"))
            expect_no_export(conf, mixture ? "it has experts, and" : "it has no experts, and");
    }
}

/* ---- what the check of an export compares ---- */

#define ROPE       BASE LLAMA "ffn-hidden-size = 40\n"
#define SCALED     ROPE "use-rope-scaling = true\n"
#define LONG       ROPE "rope-short-factor = 1 2 3\nrope-long-factor = 1 2 3\n"
#define YARN       BASE "position-embedding-type = yarn\nmscale = 0.5\nmscale-all-dim = 2\n"
#define DYNAMIC    ROPE "rope-dynamic-factor = 2\n"
#define WINDOWS    ROPE "window-size = 7,0\n"
#define MIXTURE    BASE LLAMA EXPERTS
#define BERT       BASE "model = bert\nactivation = gelu-erf\n"
#define WITH_BIAS  MIXTURE GLM
#define IN_GROUPS  WITH_BIAS "moe-router-topk = 4\nmoe-router-num-groups = 4\nmoe-router-group-topk = 2\n"
#define CAPACITY   MIXTURE "moe-expert-capacity-factor = 1\n"
#define LATENT     "multi-latent-attention = true\nqk-layernorm = true\nlatent-norm-epsilon = 1e-6\n"
#define MLA        ROPE "multi-latent-attention = true\n"
#define WITH_SHARE MIXTURE "moe-shared-expert-intermediate-size = 40\n"

/* Two models that differ in only one option. */
static const struct {
    const char *field, *base, *change;
} DIFFERENCES[] = {
    {"num_layers", ROPE, "num-layers = 5"},
    {"hidden_size", ROPE "kv-channels = 6\n", "hidden-size = 48"},
    {"ffn_hidden_size", ROPE, "ffn-hidden-size = 41"},
    {"num_attention_heads", ROPE "kv-channels = 6\ngroup-query-attention = true\n",
     "num-attention-heads = 8"},
    {"kv_channels", ROPE, "kv-channels = 8"},
    {"num_query_groups", ROPE "group-query-attention = true\n", "num-query-groups = 2"},
    {"max_position_embeddings", ROPE, "max-position-embeddings = 20"},
    {"position_embedding_type", BASE, "position-embedding-type = none"},
    {"rotary_base", ROPE, "rotary-base = 10001"},
    {"rotary_percent", ROPE "kv-channels = 8\n", "rotary-percent = 0.5"},
    {"rotary_interleaved", ROPE, "rotary-interleaved = true"},
    {"rotary_seq_len_interpolation_factor", ROPE, "rotary-seq-len-interpolation-factor = 2"},
    {"no_rope_freq", ROPE, "no-rope-freq = 2"},
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
    {"norm_bias", BASE, "disable-norm-bias = true"},
    {"add_output_layer_bias", BASE, "add-output-layer-bias = true"},
    {"activation", BASE, "activation = gelu-erf"},
    {"activation_func_clamp_value", MIXTURE, "activation-func-clamp-value = 7"},
    {"glu_linear_offset", BASE "activation = quick-geglu\n", "glu-linear-offset = 1"},
    {"add_bias_linear", BASE "add-qkv-bias = true\nadd-attn-proj-bias = true\nactivation = gelu-erf\n",
     "disable-bias-linear = true"},
    {"add_qkv_bias", ROPE, "add-qkv-bias = true"},
    {"add_attn_proj_bias", ROPE, "add-attn-proj-bias = true"},
    {"qk_layernorm", ROPE, "qk-layernorm = true"},
    {"qk_layernorm_whole", ROPE "qk-layernorm = true\n", "qk-layernorm-whole = true"},
    {"multi_latent_attention", ROPE, "multi-latent-attention = true"},
    {"rope_type", MLA, "rope-type = rope"},
    {"q_lora_rank", MLA, "q-lora-rank = 8"},
    {"kv_lora_rank", MLA, "kv-lora-rank = 8"},
    {"qk_head_dim", MLA, "qk-head-dim = 120"},
    {"qk_pos_emb_head_dim", MLA, "qk-pos-emb-head-dim = 32"},
    {"v_head_dim", MLA, "v-head-dim = 120"},
    {"latent_norm_epsilon", MLA, "latent-norm-epsilon = 1e-6"},
    {"softmax_scale", MLA "rope-attention-factor = 1\nrotary-scaling-factor = 2\n", "mscale-all-dim = 1"},
    {"window_size", WINDOWS, "window-size = 8,0"},
    {"window_attn_skip_freq", WINDOWS, "window-attn-skip-freq = [0,1,1,1]"},
    {"softmax_type", ROPE, "softmax-type = off-by-one"},
    {"norm_placement", ROPE, "norm-placement = sandwich"},
    {"parallel_residual", ROPE, "parallel-residual = one-norm"},
    {"scale_embedding", ROPE, "scale-embedding = true"},
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

/* Options of training and memory, which are not exported; two that are part of num_query_groups and activation. */
static const char *const NOT_COMPARED[] = {"bias_gelu_fusion",
                                           "hf_model_type",
                                           "seq_length",
                                           "decoder_seq_length",
                                           "make_vocab_size_divisible_by",
                                           "group_query_attention",
                                           "hidden_dropout",
                                           "attention_dropout",
                                           "classifier_dropout"};

static bool is_not_compared(const char *field) {
    for (size_t i = 0; i < sizeof NOT_COMPARED / sizeof *NOT_COMPARED; i++)
        if (!strcmp(field, NOT_COMPARED[i])) return true;
    return false;
}

/* The lines of a configuration. If an option occurs several times, only its last line counts. */
static char *last_lines(const char *conf) {
    Str out = {0};
    for (const char *line = conf, *end; *line; line = end) {
        end = strchr(line, '\n') + 1;
        char *again = mem_printf("\n%.*s=", (int)(strcspn(line, "=")), line);
        if (!strstr(end - 1, again)) str_add(&out, line, (size_t)(end - line));
        free(again);
    }
    return out.s;
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
        notes.s, "note: hidden_dropout is '0.0' here and '0.25' in config.json, which has no key for it\n"
                 "note: attention_dropout is '0.1' here and '0.0' in config.json, which has no key for it\n");
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
        {BASE, "rotary-base = 7\nadd-qkv-bias = true\nadd-attn-proj-bias = true\nactivation = gelu-tanh"},
        {WINDOWS, "window-attn-skip-freq = [1,1,1,1]"},
        {WINDOWS "window-attn-skip-freq = 2\n", "window-attn-skip-freq = [1,0]*2"},
        {ROPE, "num-experts = 4\nmoe-layer-freq = [0,0,0,0]\nmoe-router-topk = 3"},
        {MLA, "rope-type = yarn\nlatent-norm-epsilon = 1e-5\nkv-channels = 7\nnorm-epsilon = 1e-5"},
        {MIXTURE, "ffn-hidden-size = 44\nmoe-layer-freq = [1,1,1,1]\nmoe-router-topk-scaling-factor = 1"},
    };
    Str notes = {0};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        assert_ok(compare(same[i][0], same[i][1], &notes));
    assert_int_equal(notes.len, 0);
}

/* ---- combinations of options ---- */

#define ROBERTA(type)                                                                                        \
    "model = bert\nactivation = gelu-erf\nnorm-placement = post\nbert-no-binary-head = "                     \
    "true\nnum-token-types = "                                                                               \
    "1\nhf-model-type = " type "\n"

#define GPT_OSS                                                                                              \
    "activation = quick-geglu\nglu-linear-offset = 1\nactivation-func-clamp-value = 7\nsoftmax-type = "      \
    "learnable\n"

/* --hf-model-type with the name of the type that is tried: an earlier type may fit too. */
#define NAMED "hf-model-type = %s\n"

enum { MOST_CHOICES = 12 };
static const char *const CHOICES[][MOST_CHOICES] = {
    {"", LLAMA_POSITIONS, LLAMA_POSITIONS "rotary-percent = 0.5\n",
     LLAMA_POSITIONS "rotary-seq-len-interpolation-factor = 2\n", LLAMA_POSITIONS "use-rope-scaling = true\n",
     LLAMA_POSITIONS "parallel-residual = two-norms\n", LLAMA_POSITIONS "parallel-residual = one-norm\n",
     "position-embedding-type = yarn\n", LLAMA_POSITIONS "rope-dynamic-factor = 2\n",
     LLAMA_POSITIONS "rotary-interleaved = true\n",
     LLAMA_POSITIONS "rotary-interleaved = true\ndisable-norm-bias = true\nparallel-residual = one-norm\n",
     LLAMA_POSITIONS "add-output-layer-bias = true\nparallel-residual = one-norm\n"},
    {"", "normalization = RMSNorm\n", "apply-layernorm-1p = true\n"},
    {"", "swiglu = true\n", "squared-relu = true\n", GPT_OSS, "activation = relu\n"},
    {"", "disable-bias-linear = true\n", "disable-bias-linear = true\nadd-qkv-bias = true\n"},
    {"", "group-query-attention = true\nnum-query-groups = 2\nkv-channels = 4\n"
         "untie-embeddings-and-output-weights = true\n"},
    {"", "qk-layernorm = true\n", "embedding-multiplier = 12\n", GEMMA2,
     "activation = geglu-tanh\napply-layernorm-1p = true\nscale-embedding = true\n"},
    {"", "qk-layernorm = true\n", "qk-layernorm = true\nqk-layernorm-whole = true\nnorm-placement = post\n",
     "qk-layernorm = true\nnorm-placement = post\n", "norm-placement = sandwich\n",
     "qk-layernorm = true\nqk-layernorm-whole = true\n"},
    {"", "no-rope-freq = 2\n", "no-rope-freq = [1,1,1]\n"},
    {"", "window-size = 7,0\n", "window-size = 7,0\nwindow-attn-skip-freq = [0,1,1]\n",
     "window-size = 7,0\nwindow-attn-skip-freq = [1,0,0]\n"},
    {"", EXPERTS, EXPERTS "moe-layer-freq = [0,1,1]\nmoe-router-pre-softmax = true\n",
     EXPERTS
     "moe-layer-freq = [1,0,1]\nmoe-shared-expert-intermediate-size = 40\nmoe-shared-expert-gate = true\n",
     EXPERTS GLM "moe-layer-freq = [0,1,1]\nmoe-shared-expert-intermediate-size = 40\n", EXPERTS GLM,
     EXPERTS "moe-shared-expert-intermediate-size = 30\n",
     EXPERTS
     "moe-layer-freq = [0,1,1]\nmoe-shared-expert-intermediate-size = 40\nmoe-router-pre-softmax = true\n"},
    {"", "model = bert\nactivation = gelu-erf\n",
     "model = bert\nactivation = gelu-tanh\nnorm-placement = post\n", T5, ROBERTA("roberta"),
     ROBERTA("xlm-roberta")},
    {"", LATENT},
    {"", NAMED},
};
enum { N_CHOICES = sizeof CHOICES / sizeof *CHOICES };

/* A model of each type, in the order of hf_types.def: the choice from each row of CHOICES. */
static const int MODEL[][N_CHOICES] = {
    {0},
    {1, 1, 1},
    {1, 1, 1, 1, 0, 0, 0, 0, 1},
    {1, 1, 1, 2},
    {1, 1, 1, 1, 0, 1},
    {1, 0, 1, 1},
    {1, 2},
    {1, 1, 1, 1, 0, 0, 0, 0, 0, 1},
    {1, 1, 1, 1, 0, 0, 0, 0, 0, 3},
    {1, 1, 1, 1, 0, 1, 0, 0, 0, 1},
    {1, 1, 1, 1, 0, 0, 0, 0, 0, 4},
    {1, 1, 1, 1, 0, 0, 0, 0, 0, 7, 0, 1},
    {1, 1, 1, 1, 0, 0, 0, 0, 0, 4, 0, 1},
    {1},
    {1, 1, 1, 0, 0, 2},
    {1, 1, 0, 1, 0, 3},
    {1, 1, 0, 1, 0, 3, 1},
    {5},
    {6},
    {1, 1, 1, 1, 0, 0, 2},
    {2, 1, 1, 1, 1},
    {1, 1, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1},
    {1, 1, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 1},
    {1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0, 1},
    {9, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1},
    {9, 1, 1, 1, 0, 0, 4, 0, 0, 0, 0, 0, 1},
    {9, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1},
    {9, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1},
    {1, 1, 0, 1, 0, 4, 0, 0, 0, 0, 0, 0, 1},
    {1, 1, 1, 1, 0, 0, 3, 0, 0, 0, 0, 0, 1},
    {1, 1, 1, 1, 0, 0, 2, 0, 0, 0, 0, 0, 1},
    {1, 1, 1, 1, 0, 0, 2, 0, 0, 1, 0, 0, 1},
    {1, 1, 1, 1, 0, 1, 0, 0, 0, 4, 0, 0, 1},
    {1, 1, 1, 1, 0, 0, 5, 0, 0, 5, 0, 0, 1},
    {1, 1, 1, 1, 0, 2, 0, 0, 0, 1, 0, 0, 1},
    {1, 1, 1, 1, 0, 2, 0, 0, 0, 6, 0, 0, 1},
    {1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1},
    {1, 1, 0, 1, 0, 4, 0, 0, 0, 0, 0, 0, 1},
    {7, 1, 3, 0, 1, 0, 0, 0, 2, 1},
    {10, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1},
    {10, 0, 1, 1, 0, 0, 0, 2, 0, 0, 0, 0, 1},
    {1, 1, 1, 1, 0, 0, 5, 0, 0, 1, 0, 0, 1},
    {11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1},
    {0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1},
    {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2},
    {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1},
    {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4},
    {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5},
    {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3},
};
_Static_assert(sizeof MODEL / sizeof *MODEL == HF_TYPES, "one for each type");

static int type_in(const Str *json) {
    for (int i = 0; i < HF_TYPES; i++) {
        char line[60];
        snprintf(line, sizeof line, "\"model_type\": \"%s\"", HF_TYPE[i].name);
        if (strstr(json->s, line)) return i;
    }
    fail_msg("%s", json->s);
    return 0;
}

/* The type, HF_TYPES if the export is refused, or -1 if the options break a rule. */
static int try_export(const char *path, const char *conf) {
    TestModel m = {.arena = arena_new()};
    Str json = {0}, notes = {0};
    HfFamily family;
    int type = -1;
    args_init(&m.args, m.arena, "test", NULL);
    args_use(&m.args, config_table(&m.config, USE_ALL));
    args_bytes(&m.args, "run.conf", conf, strlen(conf));
    config_check(&m.config, CHECK_MODEL, &m.args);
    if (!args_end(&m.args).code) {
        config_finish(&m.config, m.arena, 0);
        type = hf_config_export(&m.config, F32, NULL, &json, &family).code ? HF_TYPES : type_in(&json);
    }
    if (json.len) {
        write_text(path, json.s);
        const Err e = hf_config_read_back(path, &m.config, &notes);
        if (e.code) fail_msg("%s\n%s\n%s", e.msg, conf, json.s);
    }
    str_free(&json), str_free(&notes);
    args_free(&m.args);
    arena_free(m.arena);
    return type;
}

static int try_choices(const char *path, const HfType *type, const int at[N_CHOICES]) {
    Str conf = {0};
    str_puts(&conf, BASE "num-layers = 3\n");
    for (int i = 0; i + 1 < N_CHOICES; i++) str_puts(&conf, CHOICES[i][at[i]]);
    if (at[N_CHOICES - 1]) str_printf(&conf, NAMED, type->name);
    char *options = last_lines(conf.s);
    const int exported = try_export(path, options);
    free(options);
    str_free(&conf);
    return exported;
}

/* Tries every change of up to `changes` choices among those from `first` on. Counts the refused exports. */
static int try_changes(const char *path, const HfType *type, int at[N_CHOICES], int first, int changes) {
    int refused = try_choices(path, type, at) == HF_TYPES;
    for (int i = first; i < N_CHOICES && changes; i++) {
        const int old = at[i];
        for (at[i] = 0; at[i] < MOST_CHOICES && CHOICES[i][at[i]]; at[i]++)
            if (at[i] != old) refused += try_changes(path, type, at, i + 1, changes - 1);
        at[i] = old;
    }
    return refused;
}

/* Covers, for each type, every model that differs from MODEL by one or two choices. So every type is tried with every
 * choice, and with every pair of choices if it is exported without its name; the others have the same forms. */
TEST(every_pair_of_changes_reads_back_or_is_refused) {
    char *scratch = scratch_new_in_memory(), *path = mem_printf("%s/config.json", scratch);
    for (int type = 0; type < HF_TYPES; type++) {
        int at[N_CHOICES];
        memcpy(at, MODEL[type], sizeof at);
        assert_int_equal(try_choices(path, &HF_TYPE[type], at), type);
        assert_true(try_changes(path, &HF_TYPE[type], at, 0, at[N_CHOICES - 1] ? 1 : 2) > 0);
    }
    free(path);
    scratch_remove(scratch);
}

/* ---- every key counts ---- */

/* Keys that change no function, or are read only together with other keys: a size of the window, or the first layer of
 * several if there is a list of layers. */
static bool is_idle(const json_t *root, const char *key) {
    static const char *const IDLE[] = {"pad_token_id",      "architectures",
                                       "torch_dtype",       "bos_token_id",
                                       "eos_token_id",      "dropout",
                                       "attention_dropout", "hidden_dropout",
                                       "residual_dropout",  "embedding_dropout",
                                       "embd_pdrop",        "resid_pdrop",
                                       "attn_pdrop",        "num_nextn_predict_layers"};
    for (size_t i = 0; i < sizeof IDLE / sizeof *IDLE; i++)
        if (!strcmp(key, IDLE[i])) return true;
    return !strcmp(key, "max_window_layers") && json_object_get(root, "layer_types");
}

static json_t *altered(const json_t *v) {
    if (json_is_boolean(v)) return json_boolean(!json_is_true(v));
    if (json_is_integer(v)) return json_integer(json_integer_value(v) + 1);
    if (json_is_real(v)) return json_real(json_real_value(v) * 1.5 + 0.25);
    if (json_is_string(v)) return json_string("other");
    if (json_is_array(v)) return json_pack("[s]", "other");
    return json_integer(7);
}

static void alter_each_key(const char *path, const char *conf) {
    TestModel m = {0};
    Str json = {0}, notes = {0};
    HfFamily family;
    test_model_parse(&m, conf);
    assert_ok(hf_config_export(&m.config, F32, NULL, &json, &family));
    json_t *root = json_loadb(json.s, json.len, 0, NULL), *value;
    const char *key;
    json_object_foreach(root, key, value) {
        json_t *other = json_copy(root);
        json_object_set_new(other, key, altered(value));
        char *text = json_dumps(other, 0);
        write_text(path, text);
        const Err e = hf_config_read_back(path, &m.config, &notes);
        if (!e.code != is_idle(root, key))
            fail_msg("%s: %s\n%s", key, e.code ? e.msg : "reads back as equal", text);
        json_decref(other);
        free(text);
    }
    json_decref(root);
    str_free(&json), str_free(&notes);
    args_free(&m.args);
    arena_free(m.arena);
}

/* Each has the keys of a type that other models lack. */
static const char *const KEYED[] = {
    BASE,
    ROPE "use-rope-scaling = true\n",
    ROPE "rotary-seq-len-interpolation-factor = 2\n",
    WINDOWS,
    WINDOWS "add-qkv-bias = true\nwindow-attn-skip-freq = [0,0,1,1]\n",
    WINDOWS "qk-layernorm = true\nwindow-attn-skip-freq = [0,1,0,1]\n",
    MIXTURE "window-size = 7,0\nmoe-ffn-hidden-size = 40\n",
    MIXTURE "window-size = 7,0\nqk-layernorm = true\nmoe-layer-freq = [0,1,1,1]\n",
    WITH_SHARE
    "window-size = 7,0\nadd-qkv-bias = true\nmoe-shared-expert-gate = true\nmoe-layer-freq = [0,1,1,1]\n"
    "window-attn-skip-freq = [0,1,1,1]\n",
    WITH_BIAS "moe-shared-expert-intermediate-size = 40\nmoe-layer-freq = [0,1,1,1]\n",
    WITH_BIAS LATENT
    "moe-shared-expert-intermediate-size = 40\nmoe-layer-freq = [0,1,1,1]\nrope-type = rope\n",
    IN_GROUPS LATENT "moe-shared-expert-intermediate-size = 40\nq-lora-rank = 8\nrotary-scaling-factor = 2\n"
                     "moe-layer-freq = [0,1,1,1]\nmscale = 0.5\nmscale-all-dim = 2\n",
    WITH_SHARE LATENT "moe-router-pre-softmax = true\nmoe-layer-freq = [0,1,1,1]\nrotary-scaling-factor = 2\n"
                      "rope-attention-factor = 1.5\nmscale-all-dim = 2\n",
    ROPE "normalization = LayerNorm\n",
    BASE LLAMA_POSITIONS "window-size = 7,0\n",
    ROPE "embedding-multiplier = 12\n",
    ROPE GEMMA2 "swiglu = false\nwindow-size = 7,0\nattn-logit-softcapping = 50\n",
    ROPE GEMMA2 "swiglu = false\nqk-layernorm = true\nfinal-logit-softcapping = 30\nwindow-size = 7,0\n"
                "window-attn-skip-freq = [1,1,0,1]\nrope-local-base-freq = 100\n"
                "rotary-seq-len-interpolation-factor = 2\n",
    BASE LLAMA_POSITIONS "parallel-residual = two-norms\n",
    WINDOWS "kv-channels = 8\nrotary-percent = 0.5\n",
    LONG "rope-attention-factor = 2\n",
    LONG "window-size = 7,0\nhf-model-type = phi3\n",
    ROPE "norm-placement = post\nqk-layernorm = true\nqk-layernorm-whole = true\n",
    BASE LLAMA_POSITIONS
    "parallel-residual = two-norms\ngroup-query-attention = true\nnum-query-groups = 2\n",
    BASE LLAMA_POSITIONS "parallel-residual = one-norm\ngroup-query-attention = true\n",
    BASE LLAMA_POSITIONS "apply-layernorm-1p = true\nsquared-relu = true\nkv-channels = 8\n",
    BASE LLAMA_POSITIONS "rotary-interleaved = true\ndisable-norm-bias = true\nparallel-residual = one-norm\n"
                         "swiglu = true\ndisable-bias-linear = true\nlogits-scaling = 4\n",
    WINDOWS "rotary-interleaved = true\ndisable-norm-bias = true\nparallel-residual = one-norm\n"
            "normalization = LayerNorm\nwindow-attn-skip-freq = [1,0,1,1]\nno-rope-freq = [0,1,0,0]\n",
    MIXTURE "qk-layernorm = true\nqk-layernorm-whole = true\nmoe-ffn-hidden-size = 40\n",
    BASE LLAMA_POSITIONS "add-output-layer-bias = true\nparallel-residual = one-norm\n",
    BASE "activation = relu\nhf-model-type = opt\n",
    ROPE "hf-model-type = seed_oss\n",
    WINDOWS "window-attn-skip-freq = [0,1,1,0]\nno-rope-freq = [0,1,1,0]\nhf-model-type = smollm3\n",
    ROPE "rotary-interleaved = true\nkv-channels = 8\nrotary-percent = 0.5\n",
    ROPE "rotary-interleaved = true\nhf-model-type = helium\n",
    ROPE "swiglu = false\nactivation = geglu-tanh\napply-layernorm-1p = true\nscale-embedding = true\n",
    WINDOWS
    "window-attn-skip-freq = [1,1,1,0]\nno-rope-freq = 4\nqk-layernorm = true\nnorm-placement = post\n",
};

TEST(a_change_of_any_key_is_seen) {
    char *scratch = scratch_new_in_memory(), *path = mem_printf("%s/config.json", scratch);
    for (size_t i = 0; i < sizeof KEYED / sizeof *KEYED; i++) {
        char *conf = last_lines(KEYED[i]);
        alter_each_key(path, conf);
        free(conf);
    }
    free(path);
    scratch_remove(scratch);
}
