#include "ckpt/hf_config.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "ckpt/hf_type.h"
#include "ckpt/quote.h"

/* The first problem stays; later reads return their fallback. */
typedef struct Reader {
    const json_t *root;
    const HfType *type;
    const char *path;
    Str *out;
    Err err;
} Reader;

static bool is(const Reader *r, HfTypeId id) { return hf_type_id(r->type) == id; }

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

enum { MOST_LAYERS = 65536 };

static int64_t get_layers(Reader *r, const char *key) {
    const int64_t n = get_size(r, key, REQUIRED);
    if (n > MOST_LAYERS) refuse(r, key, "more layers than a model can have here");
    return r->err.code ? 1 : n;
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
    put_size(r, "num-layers", get_layers(r, layers));
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

/* ---- windows ---- */

/* Whether layer_types, if there is one, gives layer i a window; otherwise what is the case without it. */
static bool is_named(Reader *r, const json_t *types, int64_t i, bool otherwise) {
    const char *word = json_string_value(json_array_get(types, (size_t)i));
    if (!types) return otherwise;
    if (word && !strcmp(word, "sliding_attention")) return true;
    if (word && (!strcmp(word, "full_attention") || !strcmp(word, "attention"))) return false;
    if (!r->err.code)
        r->err =
            err_user("'%s': layer_types has %s for layer %lld; only full_attention and sliding_attention "
                     "can be read",
                     r->path, word ? quote(word).s : "no text", (long long)i);
    return false;
}

/* In a file without layer_types. */
static bool is_windowed(const HfType *t, int64_t i, int64_t from) {
    if (t->windows == HF_WINDOWS_LATE) return i >= from;
    return t->windows == HF_WINDOWS_EVEN ? i % 2 == 0 && i < from : t->windows != HF_WINDOWS_NONE;
}

/* The size of the window, 0: there is none. Hugging Face counts the token itself. */
static int64_t get_window(Reader *r) {
    const HfType *t = r->type;
    const json_t *size = json_object_get(r->root, "sliding_window");
    if (t->windows == HF_WINDOWS_NONE) return 0;
    if (t->windows != HF_WINDOWS_ALL && !get_flag(r, "use_sliding_window", false)) return 0;
    if (json_is_null(size) && t->windows == HF_WINDOWS_EVEN)
        refuse(r, "sliding_window", "but use_sliding_window is true");
    return json_is_null(size) ? 0 : size ? get_size(r, "sliding_window", REQUIRED) : t->window;
}

/* transformers ignores layer_types in some types of model; a file in which it contradicts what they do was
 * meant for something else. */
static void put_windows(Reader *r, const char *layers_key) {
    const json_t *types = find(r, NULL, "layer_types");
    const int64_t layers = get_layers(r, layers_key), size = get_window(r),
                  from = hf_type_reads_layers(r->type) ? get_count(r, "max_window_layers", 28) : 0;
    int64_t windowed = 0;
    Str pattern = {0};
    if (types && is(r, TYPE_MISTRAL))
        refuse(r, "layer_types", "with which transformers makes another type of model of it, ministral");
    if (types && (!json_is_array(types) || json_array_size(types) != (size_t)layers))
        refuse(r, "layer_types", "not a list with one entry for each layer");
    for (int64_t i = 0; i < layers && !r->err.code; i++) {
        const bool usual = size && is_windowed(r->type, i, from), named = is_named(r, types, i, usual);
        if (named && !size)
            refuse(r, "layer_types", "but transformers gives this model no window");
        else if (named != usual && !hf_type_reads_layers(r->type))
            refuse(r, "layer_types", "but transformers gives every layer of this type of model the window");
        windowed += named;
        str_printf(&pattern, "%s%d", i ? "," : "[", named);
    }
    if (windowed) str_printf(r->out, "window-size = %lld,0\n", (long long)size - 1);
    if (windowed && windowed < layers) str_printf(r->out, "window-attn-skip-freq = %s]\n", pattern.s);
    str_free(&pattern);
}

/* ---- GPT-2 ---- */

/* Where transformers gives a second name of a key priority over its own. */
static void refuse_contradictions(Reader *r) {
    static const char *const NAMES[][2] = {{"hidden_size", "n_embd"},
                                           {"max_position_embeddings", "n_positions"},
                                           {"num_attention_heads", "n_head"},
                                           {"num_hidden_layers", "n_layer"}};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        const json_t *other = find(r, NULL, NAMES[i][0]);
        if (other && !json_equal(other, find(r, NULL, NAMES[i][1])))
            refuse(r, NAMES[i][0], "but GPT-2's own name of that key says otherwise");
    }
}

static void import_gpt2(Reader *r) {
    refuse_contradictions(r);
    put_shape(r, "n_layer", "n_embd", "n_head", "n_positions");
    put_size(r, "ffn-hidden-size", get_size(r, "n_inner", 4 * get_size(r, "n_embd", REQUIRED)));
    put_real(r, "norm-epsilon", get_real(r, NULL, r->type->eps_key, r->type->eps));
    put_activation(r, "activation_function", "gelu_new");
    put_windows(r, "n_layer");
    put_real(r, "hidden-dropout", get_real(r, NULL, "resid_pdrop", 0.1));
    put_real(r, "attention-dropout", get_real(r, NULL, "attn_pdrop", 0.1));
    put_flag(r, "untie-embeddings-and-output-weights", !get_flag(r, "tie_word_embeddings", true));
    must_be(r, "scale_attn_weights", true);
    must_be(r, "scale_attn_by_inverse_layer_idx", false);
    must_be(r, "add_cross_attention", false);
}

/* ---- Llama-like ---- */

static bool has_objects(const json_t *in) {
    const char *name;
    json_t *item;
    json_object_foreach((json_t *)in, name, item) {
        if (json_is_object(item)) return true;
    }
    return false;
}

/* transformers lets rope_scaling, of older files, go before rope_parameters. An empty one counts as none. */
static const json_t *find_rope(Reader *r, const char **key) {
    static const char *const KEYS[] = {"rope_scaling", "rope_parameters"};
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++) {
        const json_t *v = find(r, NULL, KEYS[i]);
        *key = KEYS[i];
        if (v && !json_is_object(v)) refuse(r, *key, "not an object");
        if (has_objects(v)) refuse(r, *key, "but numbers for each kind of layer cannot be read");
        if (json_object_size(v)) return v;
    }
    return NULL;
}

static double get_rope_number(Reader *r, const json_t *in, const char *in_key, const char *key) {
    if (!find(r, in, key)) refuse(r, in_key, "without all numbers that its rope_type needs");
    return get_real(r, in, key, 1);
}

/* Its default is the model's length; a number outside the object goes before the one inside. */
static void put_original_length(Reader *r, const json_t *in) {
    static const char key[] = "original_max_position_embeddings";
    const int64_t positions = get_size(r, "max_position_embeddings", REQUIRED);
    const double length = get_real(r, NULL, key, get_real(r, in, key, (double)positions));
    if (!(length >= 1 && length <= 1 << 30)) refuse(r, key, "not a number of positions");
    put_size(r, "rope-scaling-original-max-position-embeddings", r->err.code ? 1 : (int64_t)length);
}

static void put_rope(Reader *r) {
    const char *key = "rope_theta";
    const json_t *in = find_rope(r, &key);
    const char *type = in ? get_text(r, in, "rope_type", get_text(r, in, "type", "default")) : "default";
    double theta = get_real(r, NULL, "rope_theta", r->type->theta),
           part = get_real(r, NULL, "partial_rotary_factor", r->type->rotated);
    if (in)
        theta = get_real(r, in, "rope_theta", theta), part = get_real(r, in, "partial_rotary_factor", part);
    if (part != 1 && !r->type->partial_rotary)
        refuse(r, in && find(r, in, "partial_rotary_factor") ? key : "partial_rotary_factor",
               "but this type of model rotates whole heads");
    str_puts(r->out, "position-embedding-type = rope\n");
    put_real(r, "rotary-base", theta);
    put_real(r, "rotary-percent", part);
    if (!strcmp(type, "llama3")) {
        put_flag(r, "use-rope-scaling", true);
        put_real(r, "rope-scaling-factor", get_rope_number(r, in, key, "factor"));
        put_real(r, "rope-scaling-low-freq-factor", get_rope_number(r, in, key, "low_freq_factor"));
        put_real(r, "rope-scaling-high-freq-factor", get_rope_number(r, in, key, "high_freq_factor"));
        put_original_length(r, in);
    } else if (!strcmp(type, "linear")) {
        put_real(r, "rotary-seq-len-interpolation-factor", get_rope_number(r, in, key, "factor"));
    } else if (strcmp(type, "default")) {
        refuse(r, key,
               "a scaling of positions that this model does not have (default, linear and llama3 are known)");
    }
}

/* ---- biases ---- */

static void put_biases(Reader *r) {
    const bool attention = get_flag(r, "attention_bias", false), mlp = get_flag(r, "mlp_bias", false),
               has_both = is(r, TYPE_LLAMA) || is(r, TYPE_NEMOTRON);
    if (is(r, TYPE_QWEN3) || is(r, TYPE_QWEN3_MOE)) must_be(r, "attention_bias", false);
    if (has_both && attention != mlp)
        refuse(r, "attention_bias", "and mlp_bias differs: this model has both or neither");
    put_flag(r, "disable-bias-linear", !(has_both && attention));
    put_flag(r, "add-qkv-bias",
             is(r, TYPE_QWEN2) || (is(r, TYPE_QWEN2_MOE) && get_flag(r, "qkv_bias", true)) ||
                 (is(r, TYPE_GLM4_MOE) && attention) ||
                 (is(r, TYPE_STABLELM) && get_flag(r, "use_qkv_bias", false)));
}

/* ---- mixtures of experts ---- */

/* [0,1,1]: layers that `dense` says are without experts. */
static void put_moe_layers(Reader *r, int64_t first_dense, int64_t step, const json_t *dense) {
    const int64_t layers = get_layers(r, "num_hidden_layers");
    bool *is_dense = mem_zero((size_t)layers, sizeof *is_dense);
    for (size_t k = 0; k < json_array_size(dense); k++) {
        const json_t *layer = json_array_get(dense, k);
        const int64_t i = json_is_integer(layer) ? json_integer_value(layer) : -1;
        if (i < 0)
            refuse(r, "mlp_only_layers", "not a list of numbers of layers");
        else if (i < layers)
            is_dense[i] = true;
    }
    str_puts(r->out, "moe-layer-freq = ");
    for (int64_t i = 0; i < layers; i++) {
        bool moe = i >= first_dense && (i + 1) % step == 0 && !is_dense[i];
        str_printf(r->out, "%s%d", i ? "," : "[", moe);
    }
    str_puts(r->out, "]\n");
    free(is_dense);
}

static void put_glm_router(Reader *r) {
    const int64_t groups = get_size(r, "n_group", 1), best = get_size(r, "topk_group", 1),
                  topk = get_size(r, "num_experts_per_tok", 8);
    str_puts(r->out, "moe-router-score-function = sigmoid\nmoe-router-enable-expert-bias = true\n");
    put_real(r, "moe-router-topk-scaling-factor", get_real(r, NULL, "routed_scaling_factor", 1));
    if (best > groups) refuse(r, "topk_group", "more than n_group");
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
    const bool shared = is(r, TYPE_QWEN2_MOE);
    const json_t *dense = find(r, NULL, "mlp_only_layers");
    put_flag(r, "moe-router-pre-softmax", !get_flag(r, "norm_topk_prob", false));
    if (shared)
        put_size(r, "moe-shared-expert-intermediate-size",
                 get_size(r, "shared_expert_intermediate_size", 5632));
    put_flag(r, "moe-shared-expert-gate", shared);
    if (dense && !json_is_array(dense)) refuse(r, "mlp_only_layers", "not a list");
    put_moe_layers(r, 0, get_size(r, "decoder_sparse_step", 1), dense);
}

/* Of the two names that transformers has for the number of experts the second, if a file has it, goes before
 * the first. */
static const char *experts_key(const Reader *r) {
    static const char *const KEYS[HF_TYPES][2] = {
        [TYPE_MIXTRAL] = {"num_local_experts", "num_experts"},
        [TYPE_QWEN2_MOE] = {"num_experts", "num_experts"},
        [TYPE_QWEN3_MOE] = {"num_experts", "num_local_experts"},
        [TYPE_GLM4_MOE] = {"n_routed_experts", "num_local_experts"},
    };
    const char *const *keys = KEYS[hf_type_id(r->type)];
    return keys[find(r, NULL, keys[1]) != NULL];
}

static void put_experts(Reader *r) {
    const bool mixtral = is(r, TYPE_MIXTRAL), glm = is(r, TYPE_GLM4_MOE);
    put_size(r, "num-experts", get_size(r, experts_key(r), mixtral ? 8 : glm ? 128 : REQUIRED));
    put_size(r, "moe-router-topk", get_size(r, "num_experts_per_tok", mixtral ? 2 : glm ? 8 : REQUIRED));
    if (mixtral) return;
    put_size(r, "moe-ffn-hidden-size", get_size(r, "moe_intermediate_size", REQUIRED));
    if (glm)
        put_glm_router(r);
    else
        put_qwen_router(r);
}

/* Heads and their size. A number that is null is the usual one, also where a missing one is not. */
static void put_heads(Reader *r) {
    const int64_t heads = get_size(r, "num_attention_heads", REQUIRED),
                  hidden = get_size(r, "hidden_size", REQUIRED), usual = hidden >= heads ? hidden / heads : 1;
    const HfType *t = r->type;
    const bool has_size = json_object_get(r->root, "head_dim"),
               has_groups = json_object_get(r->root, "num_key_value_heads");
    const int64_t size = get_size(r, "head_dim", t->head_dim && !has_size ? t->head_dim : usual);
    if (is(r, TYPE_STABLELM) && size != usual) refuse(r, "head_dim", "not hidden_size / num_attention_heads");
    if (is(r, TYPE_LLAMA) && hidden % heads)
        refuse(r, "hidden_size",
               "not a multiple of num_attention_heads, as transformers wants it of this type of model");
    put_size(r, "kv-channels", size);
    put_flag(r, "group-query-attention", true);
    put_size(r, "num-query-groups",
             get_size(r, "num_key_value_heads", t->kv_heads && !has_groups ? t->kv_heads : heads));
}

static void import_llama(Reader *r) {
    const bool stablelm = is(r, TYPE_STABLELM), nemotron = is(r, TYPE_NEMOTRON), glm = is(r, TYPE_GLM4_MOE);
    put_shape(r, "num_hidden_layers", "hidden_size", "num_attention_heads", "max_position_embeddings");
    put_size(r, "ffn-hidden-size", get_size(r, "intermediate_size", REQUIRED));
    put_heads(r);
    str_printf(r->out, "normalization = %s\n", stablelm || nemotron ? "LayerNorm" : "RMSNorm");
    put_flag(r, "apply-layernorm-1p", nemotron);
    put_real(r, "norm-epsilon", get_real(r, NULL, r->type->eps_key, r->type->eps));
    if (nemotron)
        put_activation(r, "hidden_act", "relu2");
    else if (strcmp(get_text(r, NULL, "hidden_act", "silu"), "silu"))
        refuse(r, "hidden_act", "but this model gates with silu only");
    else
        put_flag(r, "swiglu", true);
    put_rope(r);
    put_biases(r);
    put_flag(r, "qk-layernorm",
             is(r, TYPE_QWEN3) || is(r, TYPE_QWEN3_MOE) || (glm && get_flag(r, "use_qk_norm", false)));
    put_windows(r, "num_hidden_layers");
    if (hf_type_has_experts(r->type)) put_experts(r);
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
    const char *type = json_string_value(json_object_get(r->root, "model_type"));
    r->type = hf_type_find(type ? type : "");
    if (!r->type) {
        Str why = {0};
        str_puts(&why, "but only "), hf_type_names(&why), str_puts(&why, " can be read");
        refuse(r, "model_type", why.s);
        str_free(&why);
        return r->err;
    }
    if (is(r, TYPE_GPT2))
        import_gpt2(r);
    else
        import_llama(r);
    must_be(r, "is_causal", true);
    if (find(r, NULL, "per_layer_config")) refuse(r, "per_layer_config", "which this model cannot have");
    return r->err;
}

Err hf_config_import(const char *path, Str *conf) {
    Str text = {0};
    Err e = file_read(path, &text);
    if (!e.code) {
        json_error_t where;
        json_t *root = json_loadb(text.s, text.len, JSON_REJECT_DUPLICATES, &where);
        Reader r = {root, NULL, path, conf, ERR_OK};
        e = root ? import_root(&r)
                 : err_user("'%s' is not JSON (line %d: %s); download it again", path, where.line,
                            quote(where.text).s);
        json_decref(root);
    }
    str_free(&text);
    return e;
}
