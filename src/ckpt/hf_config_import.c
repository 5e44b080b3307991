#include "ckpt/hf_config.h"

#include <jansson.h>
#include <string.h>

#include "base/file.h"
#include "ckpt/quote.h"

/* The first problem stays; later reads return their fallback. */
typedef struct Reader {
    const json_t *root;
    const char *path;
    Str *out;
    Err err;
} Reader;

static const char *const LLAMA_TYPES[] = {"llama", "mistral", "qwen2", "qwen3", "stablelm", "nemotron"},
                         *const MOE_TYPES[] = {"mixtral", "qwen2_moe", "qwen3_moe", "glm4_moe"};
enum {
    N_LLAMA_TYPES = sizeof LLAMA_TYPES / sizeof *LLAMA_TYPES,
    N_MOE_TYPES = sizeof MOE_TYPES / sizeof *MOE_TYPES
};

static const char *type_of(const Reader *r) {
    const char *v = json_string_value(json_object_get(r->root, "model_type"));
    return v ? v : "";
}

static bool is_type(const Reader *r, const char *type) { return !strcmp(type_of(r), type); }

static bool is_in(const char *type, const char *const *types, int n) {
    for (int i = 0; i < n; i++)
        if (!strcmp(type, types[i])) return true;
    return false;
}

static void refuse(Reader *r, const char *key, const char *why) {
    if (r->err.code) return;
    const json_t *value = json_object_get(r->root, key);
    char *text = value ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    r->err = err_user("'%s': %s is %s, %s", r->path, key, quote(text ? text : "missing").s, why);
    free(text);
}

static const json_t *find(const Reader *r, const json_t *in, const char *key) {
    const json_t *v = json_object_get(in ? in : r->root, key);
    return json_is_null(v) ? NULL : v;
}

enum { REQUIRED = -1 };

static int64_t get_size(Reader *r, const char *key, int64_t fallback) {
    const json_t *v = find(r, NULL, key);
    if (!v && fallback != REQUIRED) return fallback;
    if (json_is_integer(v) && json_integer_value(v) > 0) return json_integer_value(v);
    refuse(r, key, "not a positive whole number");
    return 1; /* still a divisor */
}

/* As get_size, but 0 is a count too. */
static int64_t get_count(Reader *r, const char *key, int64_t fallback) {
    const json_t *v = find(r, NULL, key);
    return json_is_integer(v) && json_integer_value(v) == 0 ? 0 : get_size(r, key, fallback);
}

static double get_real(Reader *r, const json_t *in, const char *key, double fallback) {
    const json_t *v = find(r, in, key);
    if (v && !json_is_number(v)) refuse(r, key, "not a number");
    return v ? json_number_value(v) : fallback;
}

static bool get_flag(Reader *r, const char *key, bool fallback) {
    const json_t *v = find(r, NULL, key);
    if (v && !json_is_boolean(v)) refuse(r, key, "neither true nor false");
    return v ? json_is_true(v) : fallback;
}

static const char *get_text(Reader *r, const json_t *in, const char *key, const char *fallback) {
    const json_t *v = find(r, in, key);
    if (v && !json_is_string(v)) refuse(r, key, "not a text");
    return v && json_is_string(v) ? json_string_value(v) : fallback;
}

static void must_be(Reader *r, const char *key, bool value) {
    if (get_flag(r, key, value) != value) refuse(r, key, "which this model cannot do");
}

static void put_size(Reader *r, const char *name, int64_t v) {
    str_printf(r->out, "%s = %lld\n", name, (long long)v);
}
static void put_real(Reader *r, const char *name, double v) { str_printf(r->out, "%s = %.17g\n", name, v); }
static void put_flag(Reader *r, const char *name, bool v) {
    if (v) str_printf(r->out, "%s = true\n", name);
}

/* ---- shared by all ---- */

static void put_shape(Reader *r, const char *layers, const char *hidden, const char *heads,
                      const char *positions) {
    put_size(r, "num-layers", get_size(r, layers, REQUIRED));
    put_size(r, "hidden-size", get_size(r, hidden, REQUIRED));
    put_size(r, "num-attention-heads", get_size(r, heads, REQUIRED));
    put_size(r, "vocab-size", get_size(r, "vocab_size", REQUIRED));
    put_size(r, "seq-length", get_size(r, positions, REQUIRED));
    put_size(r, "max-position-embeddings", get_size(r, positions, REQUIRED));
}

static void put_activation(Reader *r, const char *key, const char *fallback) {
    static const char *const names[][2] = {{"gelu_new", "gelu-tanh"},
                                           {"gelu_pytorch_tanh", "gelu-tanh"},
                                           {"gelu", "gelu-erf"},
                                           {"quick_gelu", "quick-gelu"},
                                           {"relu2", "squared-relu"}};
    const char *act = get_text(r, NULL, key, fallback);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(act, names[i][0])) {
            str_printf(r->out, "activation = %s\n", names[i][1]);
            return;
        }
    refuse(r, key, "an activation that this model does not have");
}

static void import_gpt2(Reader *r) {
    put_shape(r, "n_layer", "n_embd", "n_head", "n_positions");
    put_size(r, "ffn-hidden-size", get_size(r, "n_inner", 4 * get_size(r, "n_embd", REQUIRED)));
    put_real(r, "norm-epsilon", get_real(r, NULL, "layer_norm_epsilon", 1e-5));
    put_activation(r, "activation_function", "gelu_new");
    put_real(r, "hidden-dropout", get_real(r, NULL, "resid_pdrop", 0.1));
    put_real(r, "attention-dropout", get_real(r, NULL, "attn_pdrop", 0.1));
    put_flag(r, "untie-embeddings-and-output-weights", !get_flag(r, "tie_word_embeddings", true));
    must_be(r, "scale_attn_weights", true);
    must_be(r, "scale_attn_by_inverse_layer_idx", false);
    must_be(r, "add_cross_attention", false);
}

/* ---- Llama-like ---- */

/* The scaling of the frequencies: rope_parameters of newer files, rope_scaling beside rope_theta of older
 * ones. */
static void put_rope(Reader *r, double rotated) {
    const json_t *v = find(r, NULL, "rope_parameters"), *in = v ? v : find(r, NULL, "rope_scaling");
    const char *key = v ? "rope_parameters" : "rope_scaling";
    if (in && !json_is_object(in)) refuse(r, key, "not an object");
    const char *type = in ? get_text(r, in, "rope_type", get_text(r, in, "type", "default")) : "default";
    double theta = get_real(r, NULL, "rope_theta", 10000),
           part = get_real(r, NULL, "partial_rotary_factor", rotated);
    if (in)
        theta = get_real(r, in, "rope_theta", theta), part = get_real(r, in, "partial_rotary_factor", part);
    str_puts(r->out, "position-embedding-type = rope\n");
    put_real(r, "rotary-base", theta);
    put_real(r, "rotary-percent", part);
    if (!strcmp(type, "llama3")) {
        put_flag(r, "use-rope-scaling", true);
        put_real(r, "rope-scaling-factor", get_real(r, in, "factor", 8));
        put_real(r, "rope-scaling-low-freq-factor", get_real(r, in, "low_freq_factor", 1));
        put_real(r, "rope-scaling-high-freq-factor", get_real(r, in, "high_freq_factor", 4));
        put_size(r, "rope-scaling-original-max-position-embeddings",
                 (int64_t)get_real(r, in, "original_max_position_embeddings", 8192));
    } else if (!strcmp(type, "linear")) {
        put_real(r, "rotary-seq-len-interpolation-factor", get_real(r, in, "factor", 1));
    } else if (strcmp(type, "default")) {
        refuse(r, key,
               "a scaling of positions that this model does not have (default, linear and llama3 are known)");
    }
}

/* Hugging Face counts the token itself, Megatron-LM the tokens before it. */
static void put_window(Reader *r, int64_t size) {
    str_printf(r->out, "window-size = %lld,0\n", (long long)size - 1);
}

static void put_qwen_window(Reader *r) {
    if (!get_flag(r, "use_sliding_window", false)) return;
    const json_t *types = find(r, NULL, "layer_types");
    int64_t layers = get_size(r, "num_hidden_layers", REQUIRED), full = get_size(r, "max_window_layers", 28);
    if (types && json_array_size(types) != (size_t)layers)
        refuse(r, "layer_types", "not one entry per layer");
    if (r->err.code) return;
    put_window(r, get_size(r, "sliding_window", 4096));
    str_puts(r->out, "window-attn-skip-freq = ");
    for (int64_t i = 0; i < layers; i++) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        bool windowed = types ? type && !strcmp(type, "sliding_attention") : i >= full;
        str_printf(r->out, "%s%d", i ? "," : "[", windowed);
    }
    str_puts(r->out, "]\n");
}

static void put_biases(Reader *r) {
    bool attention = get_flag(r, "attention_bias", false), mlp = get_flag(r, "mlp_bias", false);
    if (is_type(r, "qwen3") || is_type(r, "qwen3_moe"))
        must_be(r, "attention_bias", false);
    else if (!is_type(r, "glm4_moe") && attention != mlp)
        refuse(r, "attention_bias", "and mlp_bias differs: this model has both or neither");
    put_flag(r, "disable-bias-linear", !(attention && mlp));
    put_flag(r, "add-qkv-bias",
             is_type(r, "qwen2") || (is_type(r, "qwen2_moe") && get_flag(r, "qkv_bias", true)) ||
                 (is_type(r, "glm4_moe") && attention) ||
                 (is_type(r, "stablelm") && get_flag(r, "use_qkv_bias", false)));
}

/* ---- mixtures of experts ---- */

/* [0,1,1]: layers that `dense` says are without experts. */
static void put_moe_layers(Reader *r, int64_t first_dense, int64_t step, const json_t *dense) {
    const int64_t layers = get_size(r, "num_hidden_layers", REQUIRED);
    str_puts(r->out, "moe-layer-freq = ");
    for (int64_t i = 0; i < layers; i++) {
        bool moe = i >= first_dense && (i + 1) % step == 0;
        for (size_t k = 0; k < json_array_size(dense); k++)
            moe &= json_integer_value(json_array_get(dense, k)) != i;
        str_printf(r->out, "%s%d", i ? "," : "[", moe);
    }
    str_puts(r->out, "]\n");
}

static void put_glm_router(Reader *r) {
    const int64_t groups = get_size(r, "n_group", 1), best = get_size(r, "topk_group", 1),
                  topk = get_size(r, "num_experts_per_tok", 8);
    str_puts(r->out, "moe-router-score-function = sigmoid\nmoe-router-enable-expert-bias = true\n");
    put_real(r, "moe-router-topk-scaling-factor", get_real(r, NULL, "routed_scaling_factor", 1));
    if (groups > 1) {
        /* A group counts the sum of its two best, here of its topk / group-topk best. */
        if (topk != 2 * best)
            refuse(r, "topk_group", "not half of num_experts_per_tok, which this model needs");
        put_size(r, "moe-router-num-groups", groups);
        put_size(r, "moe-router-group-topk", best);
    }
    must_be(r, "norm_topk_prob", true);
    put_size(r, "moe-shared-expert-intermediate-size",
             get_size(r, "n_shared_experts", 1) * get_size(r, "moe_intermediate_size", 1408));
    put_moe_layers(r, get_count(r, "first_k_dense_replace", 1), 1, NULL);
}

static void put_qwen_router(Reader *r) {
    const bool shared = is_type(r, "qwen2_moe");
    const json_t *dense = find(r, NULL, "mlp_only_layers");
    put_flag(r, "moe-router-pre-softmax", !get_flag(r, "norm_topk_prob", false));
    if (shared)
        put_size(r, "moe-shared-expert-intermediate-size",
                 get_size(r, "shared_expert_intermediate_size", 5632));
    put_flag(r, "moe-shared-expert-gate", shared);
    if (dense && !json_is_array(dense)) refuse(r, "mlp_only_layers", "not a list");
    put_moe_layers(r, 0, get_size(r, "decoder_sparse_step", 1), dense);
}

static void put_experts(Reader *r) {
    const bool mixtral = is_type(r, "mixtral"), glm = is_type(r, "glm4_moe");
    /* Which of the names transformers writes depends on its version. */
    const char *count = glm                            ? "n_routed_experts"
                        : find(r, NULL, "num_experts") ? "num_experts"
                                                       : "num_local_experts";
    put_size(r, "num-experts", get_size(r, count, mixtral ? 8 : glm ? 128 : REQUIRED));
    put_size(r, "moe-router-topk", get_size(r, "num_experts_per_tok", mixtral ? 2 : glm ? 8 : REQUIRED));
    if (mixtral) return;
    put_size(r, "moe-ffn-hidden-size", get_size(r, "moe_intermediate_size", REQUIRED));
    if (glm)
        put_glm_router(r);
    else
        put_qwen_router(r);
}

static void import_llama(Reader *r) {
    const bool stablelm = is_type(r, "stablelm"), nemotron = is_type(r, "nemotron"),
               glm = is_type(r, "glm4_moe");
    const int64_t heads = get_size(r, "num_attention_heads", REQUIRED),
                  hidden = get_size(r, "hidden_size", REQUIRED);
    put_shape(r, "num_hidden_layers", "hidden_size", "num_attention_heads", "max_position_embeddings");
    put_size(r, "ffn-hidden-size", get_size(r, "intermediate_size", REQUIRED));
    put_size(r, "kv-channels", get_size(r, "head_dim", hidden / heads ? hidden / heads : 1));
    put_flag(r, "group-query-attention", true);
    put_size(r, "num-query-groups",
             get_size(r, "num_key_value_heads",
                      is_type(r, "mistral") || is_type(r, "mixtral") || glm ? 8 : heads));
    str_printf(r->out, "normalization = %s\n", stablelm || nemotron ? "LayerNorm" : "RMSNorm");
    put_flag(r, "apply-layernorm-1p", nemotron);
    put_real(r, "norm-epsilon",
             stablelm   ? get_real(r, NULL, "layer_norm_eps", 1e-5)
             : nemotron ? get_real(r, NULL, "norm_eps", 1e-5)
                        : get_real(r, NULL, "rms_norm_eps", is_type(r, "mixtral") || glm ? 1e-5 : 1e-6));
    if (nemotron)
        put_activation(r, "hidden_act", "relu2");
    else if (strcmp(get_text(r, NULL, "hidden_act", "silu"), "silu"))
        refuse(r, "hidden_act", "but this model gates with silu only");
    else
        put_flag(r, "swiglu", true);
    put_rope(r, stablelm ? 0.25 : nemotron || glm ? 0.5 : 1);
    put_biases(r);
    put_flag(r, "qk-layernorm",
             is_type(r, "qwen3") || is_type(r, "qwen3_moe") || (glm && get_flag(r, "use_qk_norm", false)));
    if ((is_type(r, "mistral") || is_type(r, "mixtral")) &&
        !json_is_null(json_object_get(r->root, "sliding_window")))
        put_window(r, get_size(r, "sliding_window", 4096));
    if (!strncmp(type_of(r), "qwen", 4)) put_qwen_window(r);
    if (is_in(type_of(r), MOE_TYPES, N_MOE_TYPES)) put_experts(r);
    put_real(r, "hidden-dropout", stablelm ? get_real(r, NULL, "hidden_dropout", 0) : 0);
    put_real(r, "attention-dropout", get_real(r, NULL, "attention_dropout", 0));
    put_flag(r, "untie-embeddings-and-output-weights", !get_flag(r, "tie_word_embeddings", false));
    must_be(r, "use_parallel_residual", false);
    must_be(r, "qk_layernorm", false);
}

static Err import_root(Reader *r) {
    if (!json_is_object(r->root)) return err_user("'%s' is no JSON object; download it again", r->path);
    if (json_object_get(r->root, "quantization_config"))
        return err_user("'%s': the model is quantized (quantization_config); use the original weights",
                        r->path);
    if (is_type(r, "gpt2")) {
        import_gpt2(r);
        return r->err;
    }
    if (is_in(type_of(r), LLAMA_TYPES, N_LLAMA_TYPES) || is_in(type_of(r), MOE_TYPES, N_MOE_TYPES)) {
        import_llama(r);
        return r->err;
    }
    refuse(r, "model_type",
           "but only gpt2, llama, mistral, qwen2, qwen3, stablelm, nemotron, mixtral, qwen2_moe, qwen3_moe "
           "and glm4_moe can be read");
    return r->err;
}

Err hf_config_import(const char *path, Str *conf) {
    Str text = {0};
    Err e = file_read(path, &text);
    if (!e.code) {
        json_error_t where;
        json_t *root = json_loadb(text.s, text.len, JSON_REJECT_DUPLICATES, &where);
        Reader r = {root, path, conf, ERR_OK};
        e = root ? import_root(&r)
                 : err_user("'%s' is not JSON (line %d: %s); download it again", path, where.line,
                            quote(where.text).s);
        json_decref(root);
    }
    str_free(&text);
    return e;
}
