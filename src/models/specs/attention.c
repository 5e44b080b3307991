#include "models/option_map.h"
#include "models/specs.h"

static RopeSpec temperature_spec(const Config *c, bool rotated) {
    const double scale = rotated ? c->rope_temperature_scale : c->no_rope_temperature_scale;
    const int64_t floor = rotated ? c->rope_temperature_floor : c->no_rope_temperature_floor;
    if (!f64_is_set(scale)) return (RopeSpec){0};
    return (RopeSpec){.dim = c->derived.kv_channels,
                      .interpolation = 1,
                      .amplitude = 1,
                      .temperature = {scale, (double)floor, rotated ? 0 : 1}};
}

static RopeSpec rope_spec(const Config *c, int64_t layer) {
    if (!c->derived.layer_rotated[layer]) return (RopeSpec){0};
    if (f64_is_set(c->rope_local_base_freq) && c->derived.layer_windowed[layer])
        return (RopeSpec){.dim = c->derived.rotary_dim,
                          .base = c->rope_local_base_freq,
                          .interpolation = 1,
                          .amplitude = 1};
    RopeSpec rope = {.dim = c->derived.rotary_dim,
                     .base = c->derived.rope_base,
                     .interpolation = f64_or(c->rotary_seq_len_interpolation_factor, 1)};
    rope.divisor = c->derived.rope_divisor;
    rope.amplitude = c->derived.rope_amplitude;
    if (c->use_rope_scaling) {
        rope.llama3.factor = c->rope_scaling_factor;
        rope.llama3.low = c->rope_scaling_low_freq_factor;
        rope.llama3.high = c->rope_scaling_high_freq_factor;
        rope.llama3.original = (double)c->rope_scaling_original_max_position_embeddings;
    }
    if (config_is_yarn(c)) {
        rope.yarn.factor = c->rotary_scaling_factor;
        rope.yarn.fast = c->yarn_beta_fast;
        rope.yarn.slow = c->yarn_beta_slow;
        rope.yarn.original = (double)c->yarn_original_max_position_embeddings;
        rope.yarn.rounds = c->yarn_correction_range_round_to_int;
    }
    return rope;
}

static ContextPlan context_plan(const Config *c, ContextComm comm) {
    const I64List *sizes = &c->hierarchical_context_parallel_sizes;
    const int64_t exchange = comm == CONTEXT_A2A                       ? c->context_parallel_size
                             : comm == CONTEXT_A2A_P2P && sizes->count ? sizes->at[0]
                                                                       : 1;
    return (ContextPlan){(int)exchange, comm == CONTEXT_ALLGATHER};
}

static RelativeSpec relative_spec(const Config *c, const StackShape *s) {
    if (c->position_embedding_type != POSITION_RELATIVE) return (RelativeSpec){.name = NULL};
    return (RelativeSpec){.name = s->relative,
                          .buckets = c->relative_attention_num_buckets,
                          .max_distance = c->relative_attention_max_distance,
                          .bidirectional = !s->causal,
                          .init_std = c->derived.init_std};
}

AttentionSpec spec_attention(const LayerPlace *p) {
    const Config *c = p->config;
    const Derived *d = &c->derived;
    const bool rotated = d->layer_rotated[p->layer],
               l2 = c->qk_l2_norm && (rotated || !c->qk_l2_norm_rope_layers_only);
    return (AttentionSpec){
        .hidden = c->hidden_size,
        .heads = c->num_attention_heads,
        .groups = d->num_query_groups,
        .head_dim = d->kv_channels,
        .qkv_bias = c->add_bias_linear || c->add_qkv_bias,
        .proj_bias = c->add_bias_linear || c->add_attn_proj_bias,
        .qk_norm = c->qk_layernorm || l2,
        .gated = c->attention_output_gate,
        .qk_norm_plain = l2,
        .qk_norm_last = c->qk_layernorm_after_rope,
        .qk_norm_whole = c->qk_layernorm_whole,
        .norm = spec_norm(c),
        .qk_norm_decays = c->apply_wd_to_qk_layernorm,
        .rotary_interleaved = c->rotary_interleaved,
        .rope = rope_spec(c, p->layer),
        .temperature = temperature_spec(c, rotated),
        .relative = relative_spec(c, p->stack),
        .alibi = c->position_embedding_type == POSITION_ALIBI ? c->alibi_bias_max : 0,
        .window_left = d->layer_windowed[p->layer] ? d->window_left : WINDOW_OFF,
        .window_right = p->stack->causal ? 0 : WINDOW_OFF, /* the right part of --window-size has no effect */
        .chunk_size = rotated ? i64_or(c->attention_chunk_size, 0) : 0,
        .sink = map_softmax(c->softmax_type),
        .softcap = f64_or(c->attn_logit_softcapping, 0),
        .scale = d->softmax_scale,
        .clip = {config_measures_scores(c), c->qk_clip, c->qk_clip_threshold, c->qk_clip_alpha},
        .dropout = c->attention_dropout,
        .qkv_init_std = d->init_std,
        .proj_init_std = d->output_init_std,
        .softmax_init_std = d->init_std,
        .quant = spec_quant(c, p->layer, p->arena),
        .context = context_plan(c, d->layer_context_comm[p->layer]),
        .unfused = c->attention_backend == BACKEND_UNFUSED,
        .recompute = spec_recomputes(c, RECOMPUTE_CORE_ATTN),
    };
}

void attention_spec(const LayerPlace *p, BranchSpec *out) {
    AttentionSpec *s = arena_alloc(p->arena, sizeof *s);
    *s = spec_attention(p);
    out->spec = s;
}
