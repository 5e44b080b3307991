#include "models/specs.h"

#include <math.h>
#include <string.h>

#include "models/option_map.h"
#include "nn/cross_attention.h"
#include "nn/lm_head.h"
#include "nn/moe.h"

NormAttr spec_norm(const Config *c) {
    return (NormAttr){
        .rms = c->normalization == NORM_RMS, .one_plus = c->apply_layernorm_1p, .eps = c->norm_epsilon};
}

static bool recomputes(const Derived *d, RecomputeModule module) {
    return d->recompute_modules & 1u << module;
}

EmbeddingSpec spec_embedding(const Config *c, const Derived *d) {
    return (EmbeddingSpec){
        .vocab = d->vocab_size,
        .padded_vocab = d->padded_vocab_size,
        .hidden = c->hidden_size,
        .positions = c->position_embedding_type == POSITION_LEARNED ? d->max_position_embeddings : 0,
        .init_std = d->embedding_init_std,
        .dropout = c->hidden_dropout,
        .multiplier = c->scale_embedding ? sqrt((double)c->hidden_size) : c->embedding_multiplier,
        .rounded = c->scale_embedding,
    };
}

static RopeSpec rope_spec(const Config *c, const Derived *d, int64_t layer) {
    if (!d->layer_rotated[layer]) return (RopeSpec){0};
    if (f64_is_set(c->rope_local_base_freq) && d->layer_windowed[layer])
        return (RopeSpec){
            .dim = d->rotary_dim, .base = c->rope_local_base_freq, .interpolation = 1, .amplitude = 1};
    RopeSpec rope = {.dim = d->rotary_dim,
                     .base = c->rotary_base,
                     .interpolation = f64_or(c->rotary_seq_len_interpolation_factor, 1)};
    rope.divisor = d->rope_divisor;
    rope.amplitude = d->rope_amplitude;
    if (c->use_rope_scaling) {
        rope.llama3.factor = c->rope_scaling_factor;
        rope.llama3.low = c->rope_scaling_low_freq_factor;
        rope.llama3.high = c->rope_scaling_high_freq_factor;
        rope.llama3.original = (double)c->rope_scaling_original_max_position_embeddings;
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

/* Megatron-LM core/fp8_utils.py is_first_last_bf16_layer. */
static QuantSpec quant_spec(const Config *c, int64_t layer) {
    const bool bf16 = c->first_last_layers_bf16 && (layer < c->num_layers_at_start_in_bf16 ||
                                                    layer >= config_layers(c) - c->num_layers_at_end_in_bf16);
    return (QuantSpec){.format = bf16 ? QUANT_OFF : map_fp8_format(c->fp8_format),
                       .recipe = map_fp8_recipe(c->fp8_recipe),
                       .margin = c->fp8_margin,
                       .history = c->fp8_amax_history_len,
                       .most_recent = c->fp8_amax_compute_algo == AMAX_MOST_RECENT,
                       .wgrad = c->fp8_wgrad,
                       .emulated = c->fp8_emulated,
                       .fixed_order = c->batch_invariant_mode,
                       .keep_weights = c->fp8_keep_weights,
                       .keep_inputs = c->fp8_keep_inputs};
}

static RelativeSpec relative_spec(const Config *c, const Derived *d, const StackShape *s) {
    if (c->position_embedding_type != POSITION_RELATIVE) return (RelativeSpec){.name = NULL};
    return (RelativeSpec){.name = s->relative,
                          .buckets = c->relative_attention_num_buckets,
                          .max_distance = c->relative_attention_max_distance,
                          .bidirectional = !s->causal,
                          .init_std = d->init_std};
}

/* `layer` counts the layers of all stacks. */
static AttentionSpec attention_spec(const Config *c, const Derived *d, int64_t layer, const StackShape *s) {
    return (AttentionSpec){
        .hidden = c->hidden_size,
        .heads = c->num_attention_heads,
        .groups = d->num_query_groups,
        .head_dim = d->kv_channels,
        .qkv_bias = c->add_bias_linear || c->add_qkv_bias,
        .proj_bias = c->add_bias_linear || c->add_attn_proj_bias,
        .qk_norm = c->qk_layernorm,
        .qk_norm_whole = c->qk_layernorm_whole,
        .norm = spec_norm(c),
        .qk_norm_decays = c->apply_wd_to_qk_layernorm,
        .rotary_interleaved = c->rotary_interleaved,
        .rope = rope_spec(c, d, layer),
        .relative = relative_spec(c, d, s),
        .window_left = d->layer_windowed[layer] ? d->window_left : WINDOW_OFF,
        .window_right = s->causal ? 0 : WINDOW_OFF, /* the right reach of --window-size has no effect */
        .sink = map_softmax(c->softmax_type),
        .softcap = f64_or(c->attn_logit_softcapping, 0),
        .scale = f64_or(c->softmax_scale, 1 / sqrt((double)d->kv_channels)),
        .dropout = c->attention_dropout,
        .qkv_init_std = d->init_std,
        .proj_init_std = d->output_init_std,
        .softmax_init_std = d->init_std,
        .quant = quant_spec(c, layer),
        .context = context_plan(c, d->layer_context_comm[layer]),
        .unfused = c->attention_backend == BACKEND_UNFUSED,
        .recompute = recomputes(d, RECOMPUTE_CORE_ATTN),
    };
}

/* It has neither positions nor windows, and sees all keys. */
static CrossAttentionSpec cross_attention_spec(const Config *c, const Derived *d, int64_t layer,
                                               const StackShape *s) {
    CrossAttentionSpec x = {attention_spec(c, d, layer, s), s->encoder_positions};
    x.attention.rope = (RopeSpec){0};
    x.attention.relative = (RelativeSpec){.name = NULL};
    x.attention.window_left = x.attention.window_right = WINDOW_OFF;
    return x;
}

static MlpSpec *mlp_spec(const Config *c, const Derived *d, int64_t layer, Arena *arena) {
    MlpSpec *m = arena_alloc(arena, sizeof *m);
    *m = (MlpSpec){
        .hidden = c->hidden_size,
        .ffn = d->ffn_hidden_size,
        .activation = map_activation(d->activation),
        .bias = c->add_bias_linear,
        .fc1_init_std = d->init_std,
        .fc2_init_std = d->output_init_std,
        .quant = quant_spec(c, layer),
    };
    return m;
}

static RouterSpec router_spec(const Config *c, const Derived *d) {
    const bool groups = i64_is_set(c->moe_router_num_groups);
    RouterSpec r = {
        .hidden = c->hidden_size,
        .experts = c->num_experts,
        .topk = c->moe_router_topk,
        .route = {.score = map_score(c->moe_router_score_function),
                  .groups = groups ? c->moe_router_num_groups : 0,
                  .group_topk = groups ? c->moe_router_group_topk : 0,
                  .scaling = f64_or(c->moe_router_topk_scaling_factor, 1)},
        .bias = c->moe_router_enable_expert_bias,
        .sinkhorn = d->sinkhorn,
        .jitter = f64_or(c->moe_input_jitter_eps, 0),
        .bias_rate = c->moe_router_bias_update_rate,
        .init_std = d->init_std,
    };
    if (r.route.score == ROUTER_TOPK_SOFTMAX && (c->moe_router_pre_softmax || d->sinkhorn))
        r.route.score = d->sinkhorn && r.topk == 1 ? ROUTER_SIGMOID : ROUTER_SOFTMAX;
    for (RouterLoss i = 0; i < ROUTER_LOSSES; i++) r.loss_coeff[i] = map_loss_coeff(c, d, i);
    return r;
}

static MoeSpec *moe_spec(const Config *c, const Derived *d, Arena *arena) {
    MoeSpec *m = arena_alloc(arena, sizeof *m);
    *m = (MoeSpec){
        .router = router_spec(c, d),
        .ffn = d->moe_ffn_hidden_size,
        .shared_ffn = d->moe_shared_size,
        .shared_gate = c->moe_shared_expert_gate,
        .activation = map_activation(d->activation),
        .fc1_init_std = d->init_std,
        .fc2_init_std = d->output_init_std,
        .capacity_factor = f64_or(c->moe_expert_capacity_factor, 0),
        .pad = c->moe_pad_expert_input_to_capacity,
        .drop_by_position = c->moe_token_drop_policy == DROP_POSITION,
        .all_to_all = c->moe_token_dispatcher_type == DISPATCH_ALLTOALL,
    };
    return m;
}

static void *kept(Arena *arena, const void *spec, size_t bytes) {
    return memcpy(arena_alloc(arena, bytes), spec, bytes);
}

/* "*-", or "*E" where there are experts, or "*x-" with cross-attention. */
static LayerSpec layer_spec(const Config *c, const Derived *d, int64_t i, const StackShape *s, Arena *arena) {
    const bool moe = d->layer_moe[i];
    const AttentionSpec attention = attention_spec(c, d, i, s);
    const BranchSpec any = {.norms = map_norms(c->norm_placement, c->model),
                            .norm = spec_norm(c),
                            .multiplier = c->residual_multiplier,
                            .dropout = c->hidden_dropout};
    LayerSpec l = {.parallel = c->parallel_residual != PARALLEL_NONE};
    BranchSpec *b = &l.branch[l.n++];
    *b = any;
    b->kind = BRANCH_attention;
    b->spec = kept(arena, &attention, sizeof attention);
    if (s->encoder_positions) {
        const CrossAttentionSpec cross = cross_attention_spec(c, d, i, s);
        b = &l.branch[l.n++];
        *b = any;
        b->kind = BRANCH_cross_attention;
        b->spec = kept(arena, &cross, sizeof cross);
    }
    b = &l.branch[l.n++];
    *b = any;
    b->kind = moe ? BRANCH_moe : BRANCH_mlp;
    b->spec = moe ? (void *)moe_spec(c, d, arena) : (void *)mlp_spec(c, d, i, arena);
    b->recompute = recomputes(d, moe ? RECOMPUTE_MOE : RECOMPUTE_MLP);
    if (c->parallel_residual == PARALLEL_ONE_NORM) b->norms = NORM_SHARED;
    return l;
}

StackSpec spec_stack(const Config *c, const Derived *d, const StackShape *shape, Arena *arena) {
    StackSpec s = {.name = shape->name,
                   .hidden = c->hidden_size,
                   .layer = arena_alloc(arena, (size_t)shape->layers * sizeof *s.layer),
                   .n = shape->layers,
                   .has_final = map_norms(c->norm_placement, c->model) != NORM_SUM,
                   .final = spec_norm(c),
                   .recomputed = c->recompute_num_layers,
                   .offloaded = c->cpu_offloading_num_layers};
    if (c->recompute_granularity == RECOMPUTE_FULL)
        s.recompute = c->recompute_method == RECOMPUTE_UNIFORM ? RECOMPUTES_CHUNKS : RECOMPUTES_FIRST;
    for (int64_t i = 0; i < s.n; i++) s.layer[i] = layer_spec(c, d, shape->below + i, shape, arena);
    return s;
}

/* An untied output layer is initialised like a linear layer, whatever --embedding-init-method-std is. */
HeadSpec spec_lm_head(const Config *c, const Derived *d, Arena *arena) {
    LmHeadSpec *h = arena_alloc(arena, sizeof *h);
    *h = (LmHeadSpec){
        .vocab = d->vocab_size,
        .padded_vocab = d->padded_vocab_size,
        .hidden = c->hidden_size,
        .init_std = d->init_std,
        .chunked = c->cross_entropy_loss_fusion && c->cross_entropy_fusion_impl == CROSS_ENTROPY_LINEAR,
        .chunk = c->cross_entropy_chunk_size,
        .scaling = d->logits_scaling,
        .bias = d->output_bias,
        .softcap = f64_or(c->final_logit_softcapping, 0),
    };
    return (HeadSpec){&lm_head, h, !c->untie_embeddings_and_output_weights};
}
