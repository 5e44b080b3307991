#include "unit/cmocka_all.h"

#include <glob.h>
#include <jansson.h>

#include "ckpt/hf.h"
#include "ckpt/hf_config.h"
#include "models/gpt.h"
#include "unit/ckpt/folder.h"

/* A model by the options of a text, as a user would give them. */
typedef struct Model {
    Arena *arena;
    Args args;
    Config config;
    Derived derived;
    Gpt *gpt;
    Device *device;
} Model;

static void model_parse(Model *m, const char *conf) {
    m->arena = arena_new();
    args_init(&m->args, m->arena, "test", NULL);
    args_use(&m->args, config_table(&m->config, CONFIG_ALL_GROUPS));
    args_bytes(&m->args, "run.conf", conf, strlen(conf));
    config_check(&m->config, CHECK_MODEL, &m->args);
    Err e = args_end(&m->args);
    if (e.code) fail_msg("%s\n%s\n%s", e.msg, m->args.problems.s, conf);
    config_finish(&m->config, m->arena, 0, &m->derived);
}

static Model *model_new(const char *conf, DType storage) {
    Model *m = mem_zero(1, sizeof *m);
    model_parse(m, conf);
    m->gpt = gpt_new(&m->config, &m->derived, NULL);
    m->device = device_cpu(1);
    gpt_allocate(m->gpt, m->device, storage, m->derived.max_position_embeddings);
    return m;
}

static void model_free(Model *m) {
    gpt_free(m->gpt);
    device_free(m->device);
    args_free(&m->args);
    arena_free(m->arena);
    free(m);
}

static Str slurp(const char *dir, const char *name) {
    Str s = {0};
    char *path = mem_printf("%s/%s", dir, name);
    assert_ok(file_read(path, &s));
    free(path);
    return s;
}

static Safetensors *open_init(const char *dir) {
    Safetensors *s;
    char *path = mem_printf("%s/init.safetensors", dir);
    assert_ok(safetensors_open(path, &s));
    free(path);
    return s;
}

/* The golden cases' init.safetensors are files of transformers' save_pretrained. */
static void for_each_case(void (*fn)(const char *dir)) {
    glob_t cases;
    assert_int_equal(glob("golden/*/init.safetensors", 0, NULL, &cases), 0);
    assert_true(cases.gl_pathc >= 10);
    for (size_t i = 0; i < cases.gl_pathc; i++) {
        char *dir = mem_strdup(cases.gl_pathv[i]);
        *strrchr(dir, '/') = 0;
        fn(dir);
        free(dir);
    }
    globfree(&cases);
}

static void round_trip(const char *dir) {
    Str conf = slurp(dir, "run.conf"), want = slurp(dir, "init.safetensors"), got = {0};
    Safetensors *s = open_init(dir);
    DType dtype = (DType)s->tensors[0].tensor.dtype;
    Model *m = model_new(conf.s, dtype);
    HfFamily family;
    char *scratch = scratch_new(), *path = mem_printf("%s/out.safetensors", scratch);
    assert_ok(hf_detect(s, &family));
    assert_ok(hf_import(s, m->gpt->registry));
    assert_ok(hf_export(m->gpt->registry, family, path, dtype));
    assert_ok(file_read(path, &got));
    assert_int_equal(got.len, want.len);
    assert_memory_equal(got.s, want.s, want.len);
    safetensors_close(s);
    model_free(m);
    str_free(&conf), str_free(&want), str_free(&got);
    free(path);
    scratch_remove(scratch);
}

static void import_and_export_give_the_same_file(void **unused) {
    (void)unused;
    for_each_case(round_trip);
}

/* Megatron-LM's linear_qkv: group g has its query heads, then its key, then its value. 6 heads of 6 on 2
 * groups, width 36. */
static void llama_rows_go_to_their_groups(void **unused) {
    (void)unused;
    Str conf = slurp("golden/llama-gqa", "run.conf");
    Model *m = model_new(conf.s, F64);
    Safetensors *s = open_init("golden/llama-gqa");
    assert_ok(hf_import(s, m->gpt->registry));
    const double *qkv =
        registry_find(m->gpt->registry, "decoder.layers.1.self_attention.linear_qkv.weight")->master.data;
    const double *fc1 =
        registry_find(m->gpt->registry, "decoder.layers.1.mlp.linear_fc1.weight")->master.data;
    const float *q = safetensors_find(s, "model.layers.1.self_attn.q_proj.weight")->data;
    const float *k = safetensors_find(s, "model.layers.1.self_attn.k_proj.weight")->data;
    const float *v = safetensors_find(s, "model.layers.1.self_attn.v_proj.weight")->data;
    const float *up = safetensors_find(s, "model.layers.1.mlp.up_proj.weight")->data;
    for (int i = 0; i < 36; i++) {
        assert_true(qkv[(0 * 6 + 1) * 36 + i] == (double)q[1 * 36 + i]); /* group 0, head 0, row 1 */
        assert_true(qkv[((5 + 2) * 6 + 3) * 36 + i] ==
                    (double)q[(5 * 6 + 3) * 36 + i]); /* group 1, its head 2 = head 5 */
        assert_true(qkv[((5 + 3) * 6 + 2) * 36 + i] == (double)k[(6 + 2) * 36 + i]);
        assert_true(qkv[(4 * 6 + 5) * 36 + i] == (double)v[5 * 36 + i]);
        assert_true(fc1[(40 + 7) * 36 + i] == (double)up[7 * 36 + i]);
    }
    safetensors_close(s);
    model_free(m);
    str_free(&conf);
}

/* c_attn is [in, q | k | v]; here 2 heads of 8, width 16, and every head is a group. */
static void gpt2_columns_go_to_their_heads(void **unused) {
    (void)unused;
    Str conf = slurp("golden/gpt2-tiny", "run.conf");
    Model *m = model_new(conf.s, F64);
    Safetensors *s = open_init("golden/gpt2-tiny");
    assert_ok(hf_import(s, m->gpt->registry));
    const double *w =
        registry_find(m->gpt->registry, "decoder.layers.1.self_attention.linear_qkv.weight")->master.data;
    const double *b =
        registry_find(m->gpt->registry, "decoder.layers.1.self_attention.linear_qkv.bias")->master.data;
    const double *cw = safetensors_find(s, "transformer.h.1.attn.c_attn.weight")->data;
    const double *cb = safetensors_find(s, "transformer.h.1.attn.c_attn.bias")->data;
    for (int head = 0; head < 2; head++)
        for (int part = 0; part < 3; part++)
            for (int d = 0; d < 8; d++) {
                int row = (head * 3 + part) * 8 + d, column = part * 16 + head * 8 + d;
                assert_true(b[row] == cb[column]);
                for (int in = 0; in < 16; in++) assert_true(w[row * 16 + in] == cw[in * 48 + column]);
            }
    safetensors_close(s);
    model_free(m);
    str_free(&conf);
}

/* ---- other files ---- */

typedef struct Edited {
    char *dir, *path;
    SafeTensor tensors[100];
    int64_t count;
    Safetensors *base, *file;
    Model *model;
} Edited;

static Edited edit(const char *dir) {
    Str conf = slurp(dir, "run.conf");
    Edited e = {.dir = scratch_new(), .base = open_init(dir), .model = model_new(conf.s, F32)};
    e.path = mem_printf("%s/x.safetensors", e.dir);
    for (; e.count < e.base->count; e.count++) e.tensors[e.count] = e.base->tensors[e.count];
    str_free(&conf);
    return e;
}

static Err import_edited(Edited *e) {
    assert_ok(safetensors_write(e->path, e->tensors, e->count, NULL, 0, NULL, NULL));
    safetensors_close(e->file);
    assert_ok(safetensors_open(e->path, &e->file));
    return hf_import(e->file, e->model->gpt->registry);
}

static void edit_free(Edited *e) {
    model_free(e->model);
    safetensors_close(e->base);
    safetensors_close(e->file);
    free(e->path);
    scratch_remove(e->dir);
}

static bool all_zero(const Registry *r) {
    for (int64_t i = 0; i < r->elements; i++)
        if (((float *)r->masters)[i] != 0) return false;
    return true;
}

static void misfits_are_listed(void **unused) {
    (void)unused;
    Edited e = edit("golden/llama-bias-tied");
    float stray[4] = {0};
    e.tensors[1].name = "model.layers.0.input_layernorm.wait";
    e.tensors[2].tensor = tensor_make(stray, F32, 1, &(int64_t){4});
    assert_err(import_edited(&e), "does not fit the model",
               "1 missing: 'model.layers.0.input_layernorm.weight'",
               "1 unexpected: 'model.layers.0.input_layernorm.wait'",
               "1 of another shape: 'model.layers.0.mlp.down_proj.bias' (F32 [4], the model has [30])");
    assert_true(all_zero(e.model->gpt->registry));
    e.tensors[2].tensor = tensor_make((int64_t[30]){0}, I64, 1, &(int64_t){30});
    assert_err(import_edited(&e), "(I64 [30], the model has [30])");
    edit_free(&e);
    e = edit("golden/gpt2-tiny");
    for (int64_t i = 0; i < e.count; i++)
        e.tensors[i].name = arena_printf(e.model->arena, "x.%s", e.tensors[i].name);
    assert_err(import_edited(&e), "neither a GPT-2", "'x.transformer.h.0.attn.c_attn.bias'");
    e.count = 0;
    assert_err(import_edited(&e), "neither a GPT-2");
    edit_free(&e);
}

/* Hugging Face's own gpt2 has no "transformer." and has mask buffers; a tied output layer may be saved too.
 */
static void known_variants_are_read(void **unused) {
    (void)unused;
    Edited e = edit("golden/gpt2-awkward");
    float buffer[2] = {0};
    for (int64_t i = 0; i < e.count; i++) e.tensors[i].name += strlen("transformer.");
    e.tensors[e.count++] =
        (SafeTensor){"h.0.attn.bias", tensor_make(buffer, F32, 4, (int64_t[]){1, 1, 1, 2})};
    const Tensor *wte = safetensors_find(e.base, "transformer.wte.weight");
    e.tensors[e.count++] = (SafeTensor){"lm_head.weight", *wte};
    assert_ok(import_edited(&e));
    const Registry *r = e.model->gpt->registry;
    assert_memory_equal(r->params[0]->master.data, wte->data, tensor_bytes(wte));
    float *other = mem_zero((size_t)tensor_count(wte), sizeof *other);
    e.tensors[e.count - 1].tensor.data = other;
    assert_err(import_edited(&e), "1 unexpected: 'lm_head.weight'");
    free(other);
    edit_free(&e);
}

static void parameters_without_counterpart_are_named(void **unused) {
    (void)unused;
    HfMap map;
    Str conf = slurp("golden/qwen3-like", "run.conf");
    Model *m = model_new(conf.s, F32);
    assert_err(hf_map(m->gpt->registry, HF_GPT2, &map),
               "parameter 'decoder.layers.0.self_attention.q_layernorm.weight'",
               "no counterpart in Hugging Face's GPT-2");
    hf_map_free(&map);
    model_free(m);
    str_free(&conf);
}

/* 16-bit files are read, and 16-bit storage is rounded from the masters. */
static void sixteen_bit_files_and_storage_work(void **unused) {
    (void)unused;
    Str conf = slurp("golden/llama-gqa", "run.conf");
    Model *wide = model_new(conf.s, F32), *narrow = model_new(conf.s, BF16);
    Safetensors *s = open_init("golden/llama-gqa"), *half;
    char *scratch = scratch_new(), *path = mem_printf("%s/half.safetensors", scratch);
    assert_ok(hf_import(s, wide->gpt->registry));
    assert_ok(hf_export(wide->gpt->registry, HF_LLAMA, path, BF16));
    assert_ok(safetensors_open(path, &half));
    assert_ok(hf_import(half, narrow->gpt->registry));
    for (int i = 0; i < wide->gpt->registry->n; i++) {
        const Param *a = wide->gpt->registry->params[i], *b = narrow->gpt->registry->params[i];
        for (int64_t k = 0; k < param_logical_count(a); k++) {
            uint16_t want = bf16_from_float(((float *)a->master.data)[k]);
            assert_int_equal(((uint16_t *)b->value.data)[k], want);
            assert_true(((float *)b->master.data)[k] == bf16_to_float(want));
        }
    }
    safetensors_close(s), safetensors_close(half);
    model_free(wide), model_free(narrow);
    str_free(&conf);
    free(path);
    scratch_remove(scratch);
}

/* ---- config.json ---- */

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

static void config_json_is_not_trusted(void **unused) {
    (void)unused;
#define SIZES                                                                                                \
    "\"num_hidden_layers\":2,\"hidden_size\":8,\"num_attention_heads\":2,\"intermediate_size\":16,\"vocab_"  \
    "size\":9,"                                                                                              \
    "\"max_position_embeddings\":16"
    static const char *const texts[][2] = {
        {"", "is not JSON"},
        {"[]", "no JSON object"},
        {"{}", "model_type is 'missing'"},
        {"{\"model_type\":\"bloom\"}", "model_type is '\"bloom\"', but only gpt2"},
        {"{\"model_type\":7}", "model_type is '7'"},
        {"{\"model_type\":\"llama\"}", "num_attention_heads is 'missing'"},
        {"{\"model_type\":\"llama\",\"quantization_config\":{}," SIZES "}", "quantized"},
        {"{\"model_type\":\"llama\",\"hidden_act\":\"gelu\"," SIZES "}", "hidden_act is '\"gelu\"'"},
        {"{\"model_type\":\"llama\",\"rms_norm_eps\":\"small\"," SIZES "}",
         "rms_norm_eps is '\"small\"', not a number"},
        {"{\"model_type\":\"llama\",\"attention_bias\":true," SIZES "}", "mlp_bias differs"},
        {"{\"model_type\":\"llama\",\"attention_bias\":1," SIZES "}", "neither true nor false"},
        {"{\"model_type\":\"llama\",\"head_dim\":0," SIZES "}",
         "head_dim is '0', not a positive whole number"},
        {"{\"model_type\":\"llama\",\"rope_scaling\":{\"type\":\"yarn\"}," SIZES "}", "scaling of positions"},
        {"{\"model_type\":\"llama\",\"rope_scaling\":3," SIZES "}", "rope_scaling is '3', not an object"},
        {"{\"model_type\":\"qwen2\",\"use_sliding_window\":true,\"layer_types\":[]," SIZES "}",
         "not one entry per layer"},
        {"{\"model_type\":\"stablelm\",\"use_parallel_residual\":true," SIZES "}",
         "use_parallel_residual is 'true'"},
        {"{\"model_type\":\"nemotron\",\"hidden_act\":\"silu\"," SIZES "}",
         "activation that this model does not have"},
        {"{\"model_type\":\"qwen2_moe\"," SIZES "}", "num_local_experts is 'missing'"},
        {"{\"model_type\":\"qwen3_moe\",\"num_experts\":4,\"num_experts_per_tok\":2,\"moe_intermediate_"
         "size\":8,"
         "\"mlp_only_layers\":1," SIZES "}",
         "mlp_only_layers is '1', not a list"},
        {"{\"model_type\":\"glm4_moe\",\"moe_intermediate_size\":8,\"n_group\":2," SIZES "}",
         "topk_group is"},
        {"{\"model_type\":\"glm4_moe\",\"moe_intermediate_size\":8,\"norm_topk_prob\":false," SIZES "}",
         "norm_topk_prob is 'false'"},
        {"{\"model_type\":\"glm4_moe\",\"moe_intermediate_size\":8,\"first_k_dense_replace\":-1," SIZES "}",
         "first_k_dense_replace is '-1'"},
        {"{\"model_type\":\"gpt2\",\"n_layer\":1,\"n_embd\":8,\"n_head\":2,\"n_positions\":9,\"vocab_size\":"
         "9,"
         "\"scale_attn_by_inverse_layer_idx\":true}",
         "scale_attn_by_inverse_layer_idx"},
    };
    char *scratch = scratch_new(), *path = mem_printf("%s/config.json", scratch);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        Str conf = {0};
        assert_ok(file_write_atomic(path, texts[i][0], strlen(texts[i][0])));
        assert_err(hf_config_import(path, &conf), texts[i][1]);
        str_free(&conf);
    }
    free(path);
    scratch_remove(scratch);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(import_and_export_give_the_same_file),
        cmocka_unit_test(llama_rows_go_to_their_groups),
        cmocka_unit_test(gpt2_columns_go_to_their_heads),
        cmocka_unit_test(misfits_are_listed),
        cmocka_unit_test(known_variants_are_read),
        cmocka_unit_test(parameters_without_counterpart_are_named),
        cmocka_unit_test(sixteen_bit_files_and_storage_work),
        cmocka_unit_test(config_json_round_trips),
        cmocka_unit_test(models_that_hf_lacks_are_refused),
        cmocka_unit_test(config_json_is_not_trusted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
