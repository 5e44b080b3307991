#include "ckpt/hf_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/hf_type.h"

static int64_t count_windowed(const Config *c, const Derived *d) {
    int64_t n = 0;
    for (int64_t i = 0; i < c->num_layers; i++) n += d->layer_windowed[i] && d->window_left >= 0;
    return n;
}

/* ---- mixtures of experts ---- */

static int64_t first_moe_layer(const Config *c, const Derived *d) {
    int64_t i = 0;
    while (i < c->num_layers && !d->layer_moe[i]) i++;
    return i;
}

static bool is_glm(const Config *c, const Derived *d) {
    const bool groups = i64_is_set(c->moe_router_num_groups);
    return c->moe_router_enable_expert_bias && !c->moe_shared_expert_gate && c->moe_router_topk > 1 &&
           (!groups || c->moe_router_topk == 2 * c->moe_router_group_topk) && d->moe_shared_size > 0 &&
           d->moe_shared_size % d->moe_ffn_hidden_size == 0 && !count_windowed(c, d) &&
           first_moe_layer(c, d) + d->num_moe_layers == c->num_layers;
}

/* RMSNorm, SwiGLU, RoPE and no biases are given. */
static HfTypeId choose_moe(const Config *c, const Derived *d) {
    const int64_t windowed = count_windowed(c, d);
    const bool scaled =
        f64_is_set(c->moe_router_topk_scaling_factor) && c->moe_router_topk_scaling_factor != 1;
    if (d->sinkhorn || f64_is_set(c->moe_expert_capacity_factor)) return HF_TYPES;
    if (c->moe_router_score_function == SCORE_SIGMOID) return is_glm(c, d) ? TYPE_GLM4_MOE : HF_TYPES;
    if (scaled || i64_is_set(c->moe_router_num_groups) || c->rotary_percent != 1) return HF_TYPES;
    if (d->moe_shared_size)
        return c->moe_shared_expert_gate && c->add_qkv_bias && !c->qk_layernorm ? TYPE_QWEN2_MOE : HF_TYPES;
    if (c->add_qkv_bias) return HF_TYPES;
    if (windowed && windowed < c->num_layers) return HF_TYPES; /* these two have all or none */
    if (c->qk_layernorm) return TYPE_QWEN3_MOE;
    return !c->moe_router_pre_softmax && d->num_moe_layers == c->num_layers ? TYPE_MIXTRAL : HF_TYPES;
}

static HfTypeId choose(const Config *c, const Derived *d) {
    if (d->activation > MLP_SWIGLU) return HF_TYPES;
    const int64_t windowed = count_windowed(c, d);
    const bool rms = c->normalization == NORM_RMS, one_plus = c->apply_layernorm_1p,
               bias = c->add_bias_linear;
    const bool even_heads = d->kv_channels * c->num_attention_heads == c->hidden_size,
               gated = d->activation == MLP_SWIGLU;
    if (c->position_embedding_type == POSITION_LEARNED) {
        bool plain =
            !d->num_moe_layers && !rms && bias && !one_plus && !c->qk_layernorm && !gated && !windowed;
        return plain && even_heads && d->num_query_groups == c->num_attention_heads ? TYPE_GPT2 : HF_TYPES;
    }
    const bool interpolated = f64_is_set(c->rotary_seq_len_interpolation_factor);
    if (c->position_embedding_type != POSITION_ROPE || c->rotary_interleaved ||
        (interpolated && c->use_rope_scaling))
        return HF_TYPES;
    if (rms) {
        if (one_plus || !gated) return HF_TYPES;
        if (d->num_moe_layers) return choose_moe(c, d);
        if (c->rotary_percent != 1) return HF_TYPES;
        if (c->qk_layernorm) return bias || c->add_qkv_bias ? HF_TYPES : TYPE_QWEN3;
        if (!bias && c->add_qkv_bias) return TYPE_QWEN2;
        if (!windowed && c->hidden_size % c->num_attention_heads == 0) return TYPE_LLAMA;
        return (!windowed || windowed == c->num_layers) && !bias ? TYPE_MISTRAL : HF_TYPES;
    }
    if (c->qk_layernorm || windowed || d->num_moe_layers) return HF_TYPES;
    if (gated) return one_plus || bias || !even_heads ? HF_TYPES : TYPE_STABLELM;
    return one_plus && d->activation == MLP_SQUARED_RELU && (bias || !c->add_qkv_bias) ? TYPE_NEMOTRON
                                                                                       : HF_TYPES;
}

/* ---- text ---- */

static void put(Str *out, const char *key, const char *value) {
    str_printf(out, ",\n  \"%s\": %s", key, value);
}
static void put_size(Str *out, const char *key, int64_t v) {
    str_printf(out, ",\n  \"%s\": %lld", key, (long long)v);
}
static void put_flag(Str *out, const char *key, bool v) { put(out, key, v ? "true" : "false"); }

/* The shortest decimal that reads back as the same double, with a point or exponent. */
static const char *real(double v, char text[40]) {
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, 40, "%.*g", digits, v);
        if (strtod(text, NULL) == v) break;
    }
    return strpbrk(text, ".e") ? text : strcat(text, ".0");
}

static void put_real(Str *out, const char *key, double v) { put(out, key, real(v, (char[40]){0})); }

static const char *const ACTIVATIONS[] = {[MLP_GELU_TANH] = "\"gelu_new\"",
                                          [MLP_GELU_ERF] = "\"gelu\"",
                                          [MLP_QUICK_GELU] = "\"quick_gelu\"",
                                          [MLP_SQUARED_RELU] = "\"relu2\"",
                                          [MLP_SWIGLU] = "\"silu\""};

static void put_gpt2(const Config *c, const Derived *d, Str *out) {
    put_size(out, "n_layer", c->num_layers);
    put_size(out, "n_embd", c->hidden_size);
    put_size(out, "n_head", c->num_attention_heads);
    put_size(out, "n_inner", d->ffn_hidden_size);
    put_size(out, "n_positions", d->max_position_embeddings);
    put(out, "activation_function", ACTIVATIONS[d->activation]);
    put_real(out, "embd_pdrop", c->hidden_dropout);
    put_real(out, "resid_pdrop", c->hidden_dropout);
    put_real(out, "attn_pdrop", c->attention_dropout);
}

/* The spelling that old and new transformers read. */
static void put_rope(const Config *c, Str *out) {
    char a[40], b[40], factor[40];
    put_real(out, "rope_theta", c->rotary_base);
    put_real(out, "partial_rotary_factor", c->rotary_percent);
    if (c->use_rope_scaling)
        str_printf(
            out,
            ",\n  \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": %s, \"low_freq_factor\": %s, "
            "\"high_freq_factor\": %s, \"original_max_position_embeddings\": %lld}",
            real(c->rope_scaling_factor, factor), real(c->rope_scaling_low_freq_factor, a),
            real(c->rope_scaling_high_freq_factor, b),
            (long long)c->rope_scaling_original_max_position_embeddings);
    else if (f64_is_set(c->rotary_seq_len_interpolation_factor))
        str_printf(out, ",\n  \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": %s}",
                   real(c->rotary_seq_len_interpolation_factor, factor));
    else
        put(out, "rope_scaling", "null");
}

/* Hugging Face counts the token itself, Megatron-LM the tokens before it. */
static void put_windows(const Config *c, const Derived *d, const HfType *t, Str *out) {
    const int64_t windowed = count_windowed(c, d);
    int64_t full = 0;
    if (t->windows == HF_WINDOWS_NONE) return;
    if (windowed)
        put_size(out, "sliding_window", d->window_left + 1);
    else
        put(out, "sliding_window", "null");
    if (t->windows != HF_WINDOWS_ALL) put_flag(out, "use_sliding_window", windowed > 0);
    if (!windowed || !hf_type_reads_layers(t)) return;
    while (!d->layer_windowed[full]) full++;
    if (t->windows == HF_WINDOWS_LATE) put_size(out, "max_window_layers", full);
    str_puts(out, ",\n  \"layer_types\": [");
    for (int64_t i = 0; i < c->num_layers; i++)
        str_printf(out, "%s\"%s\"", i ? ", " : "",
                   d->layer_windowed[i] ? "sliding_attention" : "full_attention");
    str_puts(out, "]");
}

static void put_moe_layers(const Config *c, const Derived *d, Str *out) {
    const char *comma = "";
    put_size(out, "decoder_sparse_step", 1);
    str_puts(out, ",\n  \"mlp_only_layers\": [");
    for (int64_t i = 0; i < c->num_layers; i++)
        if (!d->layer_moe[i]) str_printf(out, "%s%lld", comma, (long long)i), comma = ", ";
    str_puts(out, "]");
}

static void put_glm_router(const Config *c, const Derived *d, Str *out) {
    const bool groups = i64_is_set(c->moe_router_num_groups);
    put_size(out, "n_group", groups ? c->moe_router_num_groups : 1);
    put_size(out, "topk_group", groups ? c->moe_router_group_topk : 1);
    put_real(out, "routed_scaling_factor",
             f64_is_set(c->moe_router_topk_scaling_factor) ? c->moe_router_topk_scaling_factor : 1);
    put_flag(out, "norm_topk_prob", true);
    put_size(out, "n_shared_experts", d->moe_shared_size / d->moe_ffn_hidden_size);
    put_size(out, "first_k_dense_replace", first_moe_layer(c, d));
    put_size(out, "num_nextn_predict_layers", 0);
    put_flag(out, "use_qk_norm", c->qk_layernorm);
    put_flag(out, "attention_bias", c->add_qkv_bias);
}

static void put_experts(const Config *c, const Derived *d, HfTypeId type, Str *out) {
    put_size(out,
             type == TYPE_MIXTRAL    ? "num_local_experts"
             : type == TYPE_GLM4_MOE ? "n_routed_experts"
                                     : "num_experts",
             c->num_experts);
    put_size(out, "num_experts_per_tok", c->moe_router_topk);
    if (type == TYPE_MIXTRAL) return;
    put_size(out, "moe_intermediate_size", d->moe_ffn_hidden_size);
    if (type == TYPE_GLM4_MOE) {
        put_glm_router(c, d, out);
        return;
    }
    put_flag(out, "norm_topk_prob", !c->moe_router_pre_softmax);
    put_moe_layers(c, d, out);
    if (type == TYPE_QWEN2_MOE) {
        put_flag(out, "qkv_bias", true);
        put_size(out, "shared_expert_intermediate_size", d->moe_shared_size);
    }
}

static void put_llama(const Config *c, const Derived *d, HfTypeId type, Str *out) {
    put_size(out, "num_hidden_layers", c->num_layers);
    put_size(out, "hidden_size", c->hidden_size);
    put_size(out, "intermediate_size", type == TYPE_MIXTRAL ? d->moe_ffn_hidden_size : d->ffn_hidden_size);
    put_size(out, "num_attention_heads", c->num_attention_heads);
    put_size(out, "num_key_value_heads", d->num_query_groups);
    put_size(out, "head_dim", d->kv_channels);
    put_size(out, "max_position_embeddings", d->max_position_embeddings);
    put(out, "hidden_act", ACTIVATIONS[d->activation]);
    put_rope(c, out);
    put_real(out, "attention_dropout", c->attention_dropout);
    if (type == TYPE_STABLELM) {
        put_flag(out, "use_qkv_bias", c->add_qkv_bias);
        put_real(out, "hidden_dropout", c->hidden_dropout);
    }
    if (type == TYPE_LLAMA || type == TYPE_NEMOTRON || type == TYPE_QWEN3 || type == TYPE_QWEN3_MOE)
        put_flag(out, "attention_bias", c->add_bias_linear);
    if (type == TYPE_LLAMA || type == TYPE_NEMOTRON) put_flag(out, "mlp_bias", c->add_bias_linear);
    put_windows(c, d, &HF_TYPE[type], out);
    if (hf_type_has_experts(&HF_TYPE[type])) put_experts(c, d, type, out);
}

Err hf_config_export(const Config *c, const Derived *d, DType dtype, Str *out, HfFamily *family) {
    static const char *const torch_names[DTYPES] = {
        [F64] = "float64", [F32] = "float32", [BF16] = "bfloat16", [F16] = "float16"};
    const HfTypeId type = choose(c, d);
    if (c->softmax_type != SOFTMAX_VANILLA)
        return err_user("no Hugging Face model that can be written has attention sinks, as --softmax-type %s "
                        "gives this one; it cannot be exported",
                        SoftmaxType_spellings[c->softmax_type]);
    if (type == HF_TYPES) {
        Str names = {0};
        hf_type_names(&names);
        const Err e =
            err_user("none of Hugging Face's %s models has this combination of position embedding, norm, "
                     "activation, biases, windows and experts; it cannot be exported",
                     names.s);
        str_free(&names);
        return e;
    }
    const HfType *t = &HF_TYPE[type];
    *family = t->family;
    str_printf(out, "{\n  \"model_type\": \"%s\",\n  \"architectures\": [\"%s\"],\n  \"torch_dtype\": \"%s\"",
               t->name, t->architecture, torch_names[dtype]);
    put_size(out, "vocab_size", d->vocab_size);
    put_real(out, t->eps_key, c->norm_epsilon);
    put_flag(out, "tie_word_embeddings", !c->untie_embeddings_and_output_weights);
    if (type == TYPE_GPT2)
        put_gpt2(c, d, out);
    else
        put_llama(c, d, type, out);
    put(out, "bos_token_id", "null");
    put(out, "eos_token_id", "null");
    str_puts(out, "\n}\n");
    return ERR_OK;
}
