#include "nn/moe.h"

#include <math.h>

#include "models/option_map.h"
#include "models/specs.h"

static RouterSpec router_spec(const Config *c) {
    const bool groups = i64_is_set(c->moe_router_num_groups);
    RouterSpec r = {
        .hidden = c->hidden_size,
        .experts = c->num_experts,
        .topk = c->moe_router_topk,
        .linear_bias = c->add_bias_linear,
        .route = {.score = map_score(c->moe_router_score_function),
                  .groups = groups ? c->moe_router_num_groups : 0,
                  .group_topk = groups ? c->moe_router_group_topk : 0,
                  .group_scores = groups ? config_group_scores(c) : 0,
                  .scaling = f64_or(c->moe_router_topk_scaling_factor, 1),
                  .band = 2 * c->moe_router_sparsemixer_eps,
                  .order = c->derived.quantile ? ORDER_LOGITS : ORDER_SCORES},
        .bias = c->moe_router_enable_expert_bias || c->derived.quantile,
        .quantile = c->derived.quantile,
        .ema = c->moe_router_quantile_balancing_ema,
        .sinkhorn = c->derived.sinkhorn,
        .jitter = f64_or(c->moe_input_jitter_eps, 0),
        .bias_rate = c->moe_router_bias_update_rate,
        .random_std = 1,
        .init_std = c->derived.init_std,
    };
    if (r.route.score == ROUTER_TOPK_SOFTMAX && (c->moe_router_pre_softmax || c->derived.sinkhorn))
        r.route.score = c->derived.sinkhorn && r.topk == 1 ? ROUTER_SIGMOID : ROUTER_SOFTMAX;
    if (r.route.score == ROUTER_TOPK_SOFTMAX && c->moe_router_enable_expert_bias)
        r.route.order = ORDER_SOFTMAX;
    if (c->moe_router_force_load_balancing) r.random = RANDOM_REPLACES;
    if (f64_is_set(c->moe_router_force_biased)) {
        r.random = c->moe_router_force_biased < 0 ? RANDOM_BIASES_LAYER : RANDOM_BIASES_SAMPLE;
        r.random_std = fabs(c->moe_router_force_biased);
    }
    for (RouterLoss i = 0; i < ROUTER_LOSSES; i++) r.loss_coeff[i] = map_loss_coeff(c, i);
    return r;
}

void moe_spec(const LayerPlace *p, BranchSpec *out) {
    const Config *c = p->config;
    const Derived *d = &c->derived;
    MoeSpec *s = arena_alloc(p->arena, sizeof *s);
    *s = (MoeSpec){
        .router = router_spec(c),
        .ffn = d->moe_ffn_hidden_size,
        .bias = c->add_bias_linear,
        .shared_ffn = d->moe_shared_size,
        .shared_gate = c->moe_shared_expert_gate,
        .recompute_shared =
            spec_recomputes(c, RECOMPUTE_SHARED_EXPERTS) && !spec_recomputes(c, RECOMPUTE_MOE),
        .recompute_activation = spec_recomputes(c, RECOMPUTE_MOE_ACT) && !spec_recomputes(c, RECOMPUTE_MOE),
        .latent = i64_or(c->moe_latent_size, 0),
        .probs_on_input = c->moe_apply_probs_on_input,
        .activation = spec_activation(c, true),
        .shared_activation = spec_activation(c, false),
        .fc1_init_std = d->init_std,
        .fc2_init_std = d->output_init_std,
        .capacity_factor = f64_or(c->moe_expert_capacity_factor, 0),
        .pad = c->moe_pad_expert_input_to_capacity,
        .drop_by_position = c->moe_token_drop_policy == DROP_POSITION,
        .all_to_all = c->moe_token_dispatcher_type == DISPATCH_ALLTOALL,
        .quant = spec_quant(c, p->layer, p->arena),
    };
    s->quant.weights = F64; /* --quantization does not apply to experts */
    out->spec = s;
    out->recompute = spec_recomputes(c, RECOMPUTE_MOE);
}
