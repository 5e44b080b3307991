/* Compares configurations in a canonical form, in which each model has exactly one description. Options that have no
 * effect are set to fixed values. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_text.h"
#include "ckpt/hf/config.h"
#include "ckpt/hf/form.h"

/* Returns a copy of the list with each number printed in as few digits as possible. */
static TextList plain_numbers(Arena *arena, const TextList *list) {
    TextList plain = {arena_alloc(arena, (size_t)list->count * sizeof *plain.at), list->count};
    for (int64_t i = 0; i < list->count; i++) {
        Str text = {0};
        json_print_real(&text, strtod(list->at[i], NULL));
        plain.at[i] = arena_printf(arena, "%s", text.s);
        str_free(&text);
    }
    return plain;
}

/* For models without latent attention, resets its options, which have no effect. */
static void plain_latents(Config *c, const Config *fresh) {
    if (!c->multi_latent_attention) {
        c->q_lora_rank = fresh->q_lora_rank, c->kv_lora_rank = fresh->kv_lora_rank;
        c->qk_head_dim = fresh->qk_head_dim, c->qk_pos_emb_head_dim = fresh->qk_pos_emb_head_dim;
        c->mla_rotary_interleaved = fresh->mla_rotary_interleaved;
        c->v_head_dim = fresh->v_head_dim, c->rope_type = fresh->rope_type;
        return;
    }
    c->kv_channels = c->hidden_size / c->num_attention_heads;
    if (config_is_yarn(c)) c->rope_type = fresh->rope_type;
    if (c->position_embedding_type == POSITION_NONE) c->position_embedding_type = POSITION_ROPE;
}

/* Resets the options of branches that a hybrid model lacks. */
static void plain_hybrid(Config *c, const Config *fresh) {
    c->mamba_num_heads = c->derived.mamba_heads;
    if (c->hybrid_layer_pattern) c->hybrid_layer_pattern = c->derived.letters;
    if (c->hybrid_layer_pattern && !strpbrk(c->derived.letters, "*+")) {
        c->num_attention_heads = c->num_query_groups = 1, c->kv_channels = c->hidden_size;
        c->softmax_scale = 1, c->attention_dropout = fresh->attention_dropout;
        if (config_rotates(c)) c->position_embedding_type = POSITION_NONE;
    }
    if (c->hybrid_layer_pattern && !strpbrk(c->derived.letters, "-E")) c->activation = fresh->activation;
    if (c->hybrid_layer_pattern && !config_has_letter(c, '-')) c->ffn_hidden_size = I64_UNSET;
    if (config_has_letter(c, 'M')) return;
    c->mamba_num_heads = fresh->mamba_num_heads, c->mamba_num_groups = fresh->mamba_num_groups;
    c->mamba_head_dim = fresh->mamba_head_dim, c->mamba_state_dim = fresh->mamba_state_dim;
    c->mamba_dt_min = fresh->mamba_dt_min;
}

/* Writes linear_attention_freq as a list, and resets options of Gated DeltaNet and gates that the model's layers do not
 * use. */
static void plain_delta_net(Config *c, const Config *fresh, Arena *arena) {
    bool listed = false;
    for (int64_t i = 0; i < c->num_layers; i++) listed |= c->derived.layer_linear[i];
    c->experimental_attention_variant = listed ? VARIANT_GDN : VARIANT_NONE;
    c->linear_attention_freq =
        listed ? config_pattern_text(arena, c->derived.layer_linear, c->num_layers) : NULL;
    if (c->hybrid_layer_pattern && !config_has_letter(c, '*')) c->attention_output_gate = false;
    if (listed || config_has_letter(c, 'G')) return;
    c->linear_conv_kernel_dim = fresh->linear_conv_kernel_dim;
    c->linear_key_head_dim = fresh->linear_key_head_dim;
    c->linear_value_head_dim = fresh->linear_value_head_dim;
    c->linear_num_key_heads = fresh->linear_num_key_heads;
    c->linear_num_value_heads = fresh->linear_num_value_heads;
}

static void plain_positions(Config *c, const Config *fresh, Arena *arena) {
    const bool rope = config_rotates(c);
    if (!rope || !f64_is_set(c->rotary_seq_len_interpolation_factor))
        c->rotary_seq_len_interpolation_factor = 1;
    if (!rope) {
        c->rotary_base = fresh->rotary_base;
        c->rotary_percent = fresh->rotary_percent;
        c->rotary_interleaved = false;
    }
    if (c->model == MODEL_gpt && rope)
        c->no_rope_freq = config_pattern_text(arena, c->derived.layer_rotated, c->num_layers);
    if (!c->use_rope_scaling) {
        c->rope_scaling_factor = fresh->rope_scaling_factor;
        c->rope_scaling_low_freq_factor = fresh->rope_scaling_low_freq_factor;
        c->rope_scaling_high_freq_factor = fresh->rope_scaling_high_freq_factor;
    }
    const bool yarn = config_is_yarn(c);
    if (c->rope_short_factor.count ||
        (yarn && (f64_is_set(c->rope_attention_factor) || c->mscale == 0 || c->mscale_all_dim == 0)))
        c->rope_attention_factor = c->derived.rope_amplitude;
    if (!yarn) {
        c->rotary_scaling_factor = fresh->rotary_scaling_factor;
        c->yarn_original_max_position_embeddings = fresh->yarn_original_max_position_embeddings;
        c->yarn_beta_fast = fresh->yarn_beta_fast, c->yarn_beta_slow = fresh->yarn_beta_slow;
        c->yarn_correction_range_round_to_int = fresh->yarn_correction_range_round_to_int;
    }
    if (!yarn || f64_is_set(c->rope_attention_factor))
        c->mscale = fresh->mscale, c->mscale_all_dim = fresh->mscale_all_dim;
    if (!c->use_rope_scaling && !c->rope_short_factor.count && !f64_is_set(c->rope_dynamic_factor))
        c->rope_scaling_original_max_position_embeddings =
            fresh->rope_scaling_original_max_position_embeddings;
    c->rope_short_factor = plain_numbers(arena, &c->rope_short_factor);
    c->rope_long_factor = plain_numbers(arena, &c->rope_long_factor);
    c->seq_length = c->decoder_seq_length = I64_UNSET; /* only training reads these fields */
    if (config_is_unlimited(c)) c->max_position_embeddings = I64_UNSET;
    if (c->position_embedding_type != POSITION_ALIBI) c->alibi_bias_max = fresh->alibi_bias_max;
    if (c->position_embedding_type != POSITION_RELATIVE) {
        c->relative_attention_num_buckets = fresh->relative_attention_num_buckets;
        c->relative_attention_max_distance = fresh->relative_attention_max_distance;
    }
}

/* Resets options that have no effect if all or none of the model's layers have rotation. */
static void plain_layers(Config *c, const Config *fresh) {
    int64_t rotated = 0;
    for (int64_t i = 0; i < c->num_layers; i++) rotated += c->derived.layer_rotated[i];
    if (rotated == c->num_layers)
        c->no_rope_temperature_scale = fresh->no_rope_temperature_scale,
        c->qk_l2_norm_rope_layers_only = false;
    if (!f64_is_set(c->no_rope_temperature_scale))
        c->no_rope_temperature_floor = fresh->no_rope_temperature_floor;
    if (!rotated)
        c->attention_chunk_size = I64_UNSET, c->rope_temperature_scale = fresh->rope_temperature_scale;
    if (!f64_is_set(c->rope_temperature_scale)) c->rope_temperature_floor = fresh->rope_temperature_floor;
}

static void plain_windows(Config *c, Arena *arena) {
    const Derived *d = &c->derived;
    int64_t windowed = 0, *reach = arena_alloc(arena, 2 * sizeof *reach);
    for (int64_t i = 0; i < c->num_layers; i++) windowed += d->layer_windowed[i];
    reach[0] = d->window_left, reach[1] = 0;
    const bool any = windowed && d->window_left >= 0;
    c->window_size = (I64List){any ? reach : NULL, any ? 2 : 0};
    c->window_attn_skip_freq = any ? config_pattern_text(arena, d->layer_windowed, c->num_layers) : NULL;
}

/* Makes the options for heads canonical. All classification tasks have the same head. Only pretraining needs the
 * sentence-pair head. */
static void plain_heads(Config *c) {
    if (c->task == TASK_MNLI || c->task == TASK_QQP) c->task = TASK_LABELS;
    if (c->task != TASK_LABELS) c->class_labels = (TextList){0};
    if (c->task != TASK_NONE) c->bert_binary_head = true;
}

static void plain_experts(Config *c, const Config *fresh, Arena *arena) {
    const Derived *d = &c->derived;
    if (d->num_moe_layers == c->num_layers) c->ffn_hidden_size = I64_UNSET;
    if (!d->num_moe_layers) {
        c->num_experts = I64_UNSET;
        c->moe_router_topk = fresh->moe_router_topk;
    }
    const bool routed = d->num_moe_layers > 0, softmax = c->moe_router_score_function == SCORE_SOFTMAX,
               groups = routed && i64_is_set(c->moe_router_num_groups) && c->moe_router_num_groups > 1;
    c->moe_layer_freq =
        routed ? config_pattern_text(arena, d->layer_moe, c->num_layers) : fresh->moe_layer_freq;
    if (!routed) c->moe_ffn_hidden_size = I64_UNSET;
    if (!routed) c->moe_router_score_function = fresh->moe_router_score_function;
    if (c->moe_router_score_function != SCORE_SPARSEMIXER)
        c->moe_router_sparsemixer_eps = fresh->moe_router_sparsemixer_eps;
    c->moe_router_pre_softmax = routed && softmax && c->moe_router_pre_softmax;
    if (!routed) c->moe_router_topk_scaling_factor = 1;
    if (!groups)
        c->moe_router_num_groups = c->moe_router_group_topk = c->moe_router_group_score_topk = I64_UNSET;
    c->moe_router_enable_expert_bias &= routed;
    c->moe_apply_probs_on_input &= routed;
    if (!routed) c->moe_latent_size = I64_UNSET;
    if (!routed || !f64_is_set(c->moe_expert_capacity_factor)) {
        c->moe_expert_capacity_factor = fresh->moe_expert_capacity_factor;
        c->moe_token_drop_policy = fresh->moe_token_drop_policy;
    }
    const bool shared = routed && d->moe_shared_size;
    if (!shared) c->moe_shared_expert_intermediate_size = I64_UNSET;
    c->moe_shared_expert_gate &= shared;
}

/* Expresses muP through the multiplier options. No such option exists for embeddings with learned positions. */
static void fill_mup(Config *c) {
    c->use_mup = false;
    c->mup_base_hidden_size = I64_UNSET;
    c->mup_base_head_dim = NAN;
    c->mup_attn_scale_power = c->mup_output_mult = 1;
    if (c->position_embedding_type == POSITION_LEARNED || c->scale_embedding) return;
    c->embedding_multiplier *= c->mup_embedding_mult;
    c->mup_embedding_mult = 1;
}

Config hf_config_filled(const Config *config) {
    Config c = *config;
    c.vocab_size = config->derived.vocab_size;
    c.ffn_hidden_size = config->derived.ffn_hidden_size;
    c.kv_channels = config->derived.kv_channels;
    c.softmax_scale = config->derived.softmax_scale;
    c.logits_scaling = config->derived.logits_scaling;
    c.num_query_groups = config->derived.num_query_groups;
    c.decoder_num_layers = c.model == MODEL_t5 ? config_decoder_layers(&c) : I64_UNSET;
    c.num_token_types = c.model == MODEL_bert ? config_token_types(&c) : I64_UNSET;
    c.max_position_embeddings = config->derived.max_position_embeddings;
    if (c.multi_latent_attention) c.latent_norm_epsilon = f64_or(c.latent_norm_epsilon, c.norm_epsilon);
    c.activation = config->derived.activation;
    c.moe_ffn_hidden_size = config->derived.moe_ffn_hidden_size;
    c.moe_shared_expert_intermediate_size = config->derived.moe_shared_size;
    c.moe_router_topk_scaling_factor = f64_or(c.moe_router_topk_scaling_factor, 1);
    if (i64_is_set(c.moe_router_num_groups)) c.moe_router_group_score_topk = config_group_scores(config);
    if (c.use_mup) fill_mup(&c);
    return c;
}

static Config plain(const Config *config, Arena *arena) {
    Config c = hf_config_filled(config), fresh;
    config_defaults(&fresh, arena);
    c.make_vocab_size_divisible_by = fresh.make_vocab_size_divisible_by;
    c.group_query_attention = true;
    c.add_qkv_bias |= c.add_bias_linear;
    c.add_attn_proj_bias |= c.add_bias_linear;
    c.add_mlp_bias |= c.add_bias_linear;
    c.hf_model_type = fresh.hf_model_type;
    plain_latents(&c, &fresh);
    plain_hybrid(&c, &fresh);
    plain_delta_net(&c, &fresh, arena);
    plain_positions(&c, &fresh, arena);
    plain_layers(&c, &fresh);
    plain_windows(&c, arena);
    plain_heads(&c);
    plain_experts(&c, &fresh, arena);
    return c;
}

static Quoted shown(const json_t *value) {
    Str text = {0};
    json_print(&text, value, 0, 0);
    const Quoted q = quote_json(text.s);
    str_free(&text);
    return q;
}

/* Returns whether the field is a dropout rate, which only training uses. */
static bool is_dropout(const char *field) {
    return !strcmp(field, "hidden_dropout") || !strcmp(field, "attention_dropout") ||
           !strcmp(field, "classifier_dropout");
}

Err hf_config_compare(const Config *a, const Config *b, Str *notes, int *differences) {
    Arena *arena = arena_new();
    const Config x = plain(a, arena), y = plain(b, arena);
    json_t *ours = config_object(&x, CLASS_ARCH), *theirs = config_object(&y, CLASS_ARCH), *value;
    const char *field;
    Err e = ERR_OK;
    *differences = 0;
    json_object_foreach(ours, field, value) {
        const json_t *other = json_object_get(theirs, field);
        if (json_equal(value, other)) continue;
        if (is_dropout(field))
            str_printf(notes,
                       "note: %s is %s here, but %s after import, because config.json has no key for it\n",
                       field, shown(value).s, shown(other).s);
        else if (!(*differences)++)
            e = err_user("config.json would import as a different model: %s is %s in the checkpoint and %s "
                         "after import",
                         field, shown(value).s, shown(other).s);
    }
    json_decref(ours), json_decref(theirs);
    arena_free(arena);
    return e;
}
