#include "nn/router.h"

#include "base/hash.h"
#include "kernels/ops.h"
#include "ops/dropout.h"
#include "ops/gather_tokens.h"
#include "tape/tape_ops.h"

/* Returns n of the router's counters, starting at counter `first`. The counters have three parts. The first
 * part counts the tokens that are routed to each expert (for the bias). The second part counts the tokens that
 * would be routed to each expert by scores alone (for the global loss). The third part contains the loss sums.
 * Quantile balancing stores its sums in the first (experts + 1) counters. */
static Tensor counter(const Router *r, int64_t first, int64_t n) {
    return tensor_make((double *)r->counters->data + first, F64, 2, (int64_t[]){1, n});
}

static Tensor chosen(const Router *r) { return counter(r, 0, r->spec->experts); }
static Tensor quantiles(const Router *r) { return counter(r, 0, r->spec->experts + 1); }
static Tensor by_score(const Router *r) { return counter(r, r->spec->experts, r->spec->experts); }
static Tensor loss_sum(const Router *r, int loss) { return counter(r, 2 * r->spec->experts + loss, 1); }

int64_t router_counters(int64_t experts) { return 2 * experts + ROUTER_LOSSES; }

double router_loss_sum(const double *counters, int64_t experts, int loss) {
    return counters[2 * experts + loss];
}

static void router_end_step(void *self, const StateContext *c) {
    const Router *r = self;
    const bool quantile = r->spec->quantile;
    const ExpertBiasAttr rate = {r->spec->bias_rate};
    const QuantileBiasAttr ema = {r->spec->ema};
    Tensor sum = quantile ? quantiles(r) : chosen(r), *bias = &r->bias->master;
    call_run(&OPS[quantile ? OP_quantile_bias : OP_expert_bias],
             &(Call){.in = {bias, &sum},
                     .out = {bias},
                     .attr = quantile ? (const void *)&ema : &rate,
                     .device = c->device});
}

static const StateKind ROUTER_BIAS = {.end_step = router_end_step};

void router_init(Router *r, Registry *reg, const char *name, const RouterSpec *s, Tensor *counters) {
    *r = (Router){.spec = s,
                  .counters = counters,
                  .jitter_site = hash_name(arena_printf(reg->arena, "%s.jitter", name)),
                  .random_site = hash_name(arena_printf(reg->arena, "%s.random", name))};
    r->weight = param_add(reg, (ParamSpec){.name = arena_printf(reg->arena, "%s.weight", name),
                                           .ndim = 2,
                                           .dim = {s->experts, s->hidden},
                                           .tp_split = SPLIT_NONE,
                                           .init = {INIT_NORMAL, s->init_std}});
    if (s->linear_bias)
        r->linear_bias = param_add(reg, (ParamSpec){.name = arena_printf(reg->arena, "%s.bias", name),
                                                    .ndim = 1,
                                                    .dim = {s->experts},
                                                    .tp_split = SPLIT_NONE,
                                                    .flags = PARAM_NO_DECAY,
                                                    .init = {INIT_CONSTANT, 0}});
    if (!s->bias) return;
    r->bias =
        state_buffer(reg, arena_printf(reg->arena, "%s.%s_bias", name, s->quantile ? "quantile" : "expert"),
                     1, &s->experts);
    state_add(reg, &ROUTER_BIAS, r);
}

/* ---- balance ---- */

static void router_add(Tape *t, Tensor *x, Tensor sum) {
    sum.flags = TENSOR_ACCUM;
    tape_grad_off_grid(&sum);
    tape_call(t, &OPS[OP_copy], (Call){.in = {x}, .out = {&sum}});
}

/* Returns the token counts for a balancing loss. The counts cover the microbatch, each sample, or all microbatches so
 * far in the step on all data-parallel ranks. For all microbatches so far, the counts are sums, not means, because the
 * loss depends only on each expert's share of the tokens. */
static Tensor *counts(Tape *t, const Router *r, const Routing *plain, int loss) {
    const int64_t b = plain->expert->dim[1], dim[] = {loss == ROUTER_LOSS_SEQ_AUX ? b : 1, r->spec->experts};
    Tensor *count = tape_tensor(t, F64, 2, dim);
    op_expert_count(t, plain, count);
    tokens_sum(t, count,
               1u << AXIS_TP | 1u << AXIS_CP | (unsigned)(loss == ROUTER_LOSS_GLOBAL_AUX) << AXIS_DP);
    if (loss == ROUTER_LOSS_GLOBAL_AUX) {
        Tensor sum = by_score(r);
        router_add(t, count, sum);
        tape_call(t, &OPS[OP_copy], (Call){.in = {&sum}, .out = {count}});
    }
    return count;
}

static void balance(Tape *t, const Router *r, Tensor *logits, const Routing *routing) {
    const RouterSpec *s = r->spec;
    if (s->quantile)
        router_add(t, op_quantile(t, tokens_whole(t, logits), &r->bias->master, s->topk), quantiles(r));
    if (r->bias && !s->quantile) {
        Tensor count = chosen(r);
        count.flags = TENSOR_ACCUM;
        op_expert_count(t, routing, &count);
    }
    /* Balancing losses depend on which experts would be selected by scores alone, without the bias or the groups. */
    const bool alone = !s->bias && s->route.groups <= 1;
    Routing plain = *routing;
    for (int i = 0; i < ROUTER_LOSSES; i++) {
        if (s->loss_coeff[i] == 0) continue;
        const bool z = i == ROUTER_LOSS_Z;
        if (!z && !alone && plain.expert == routing->expert)
            plain = op_route(t, logits, NULL, NULL, s->topk, (RouteAttr){.scaling = 1});
        const RouterScore score = s->route.score == ROUTER_SPARSEMIXER ? ROUTER_TOPK_SOFTMAX : s->route.score;
        Tensor *loss =
            op_router_loss(t, logits, z ? NULL : counts(t, r, &plain, i),
                           (RouterLossAttr){.kind = z ? ROUTER_Z : ROUTER_BALANCE, .score = score});
        router_add(t, loss, loss_sum(r, i));
        tape_seed(t, loss, s->loss_coeff[i] * tape_microbatch(t)->aux_scale);
    }
}

Routing router_forward(Tape *t, const Router *r, Tensor *x) {
    const RouterSpec *s = r->spec;
    if (s->jitter > 0) x = op_jitter(t, x, s->jitter, r->jitter_site);
    Tensor *logits = op_gate_logits(t, x, &r->weight->value, r->linear_bias ? &r->linear_bias->value : NULL);
    if (s->random && tape_microbatch(t)->training)
        logits = op_random_logits(t, logits, s->random, s->random_std, r->random_site);
    Tensor *select = s->sinkhorn && tape_microbatch(t)->training
                         ? tokens_own(t, op_sinkhorn(t, tokens_whole(t, logits)), logits)
                         : NULL;
    Routing routing = op_route(t, logits, select, r->bias ? &r->bias->master : NULL, s->topk, s->route);
    if (tape_is_recording(t)) balance(t, r, logits, &routing);
    return routing;
}
