#include "nn/moe.h"

#include <math.h>

#include "ops/activation.h"
#include "ops/expert_parallel.h"
#include "ops/grouped.h"
#include "ops/redistribute.h"
#include "ops/residual.h"

/* Registers a weight for all experts or, if `in` is 0, a bias. */
static Param *experts_new(Registry *r, const MoeSpec *s, const char *name, const char *which, int64_t out,
                          int64_t in, int tp_split, double std) {
    const bool gated = tp_split == 0 && activation_is_gated(s->activation.kind);
    ParamSpec p = {.name = arena_printf(r->arena, "%s.experts.%s.%s", name, which, in ? "weight" : "bias"),
                   .ndim = in ? 2 : 1,
                   .dim = {s->router.experts * out, in},
                   .tp_split = in || tp_split == 0 ? tp_split : SPLIT_NONE,
                   .flags = in ? 0 : PARAM_NO_DECAY,
                   .expert = true,
                   .split_parts = tp_split == 0,
                   .init = {in ? INIT_NORMAL : INIT_CONSTANT, in ? std : 0},
                   .groups = s->router.experts,
                   .n_parts = gated ? 2 : 1};
    if (gated)
        p.parts[0] = (ParamPart){"gate", out / 2}, p.parts[1] = (ParamPart){"up", out / 2};
    else
        p.parts[0] = (ParamPart){"whole", out};
    return param_add(r, p);
}

static const Quantiser *experts_quantiser(Registry *r, const MoeSpec *s, const char *name, const char *which,
                                          Param *weight) {
    return quantize_new(r, arena_printf(r->arena, "%s.experts.%s", name, which), weight, s->quant);
}

/* Returns the width of the routed experts' input and output. */
static int64_t width(const MoeSpec *s) { return s->latent ? s->latent : s->router.hidden; }

static Linear latent_new(Registry *r, const MoeSpec *s, const char *name, const char *which, int64_t in,
                         int64_t out, double std) {
    return linear_new(r, (LinearSpec){.name = arena_printf(r->arena, "%s.%s_latent_proj", name, which),
                                      .in = in,
                                      .out = out,
                                      .bias = s->bias,
                                      .tp_split = SPLIT_NONE,
                                      .init_std = std,
                                      .quant = s->quant});
}

static void moe_init(void *self, Registry *r, const char *name, const void *spec, Tensor *counters) {
    Moe *m = self;
    const MoeSpec *s = spec;
    const int64_t hidden = s->router.hidden,
                  fc1_out = activation_is_gated(s->activation.kind) ? 2 * s->ffn : s->ffn;
    *m = (Moe){.spec = s};
    router_init(&m->router, r, arena_printf(r->arena, "%s.router", name), &s->router, counters);
    m->fc1 = experts_new(r, s, name, "linear_fc1", fc1_out, width(s), 0, s->fc1_init_std);
    m->fc2 = experts_new(r, s, name, "linear_fc2", width(s), s->ffn, 1, s->fc2_init_std);
    m->fc1_quantiser = experts_quantiser(r, s, name, "linear_fc1", m->fc1);
    m->fc2_quantiser = experts_quantiser(r, s, name, "linear_fc2", m->fc2);
    if (s->bias) {
        m->fc1_bias = experts_new(r, s, name, "linear_fc1", fc1_out, 0, 0, 0);
        m->fc2_bias = experts_new(r, s, name, "linear_fc2", width(s), 0, 1, 0);
    }
    if (s->latent) {
        m->to_latent = latent_new(r, s, name, "fc1", hidden, s->latent, s->fc1_init_std);
        m->from_latent = latent_new(r, s, name, "fc2", s->latent, hidden, s->fc2_init_std);
    }
    if (!s->shared_ffn) return;
    const MlpSpec shared = {.hidden = hidden,
                            .ffn = s->shared_ffn,
                            .activation = s->shared_activation,
                            .fc1_init_std = s->fc1_init_std,
                            .fc2_init_std = s->fc2_init_std,
                            .quant = s->quant};
    m->shared = mlp_new(r, arena_printf(r->arena, "%s.shared_experts", name), &shared);
    if (s->shared_gate)
        m->shared_gate =
            param_add(r, (ParamSpec){.name = arena_printf(r->arena, "%s.shared_experts.gate_weight", name),
                                     .ndim = 2,
                                     .dim = {1, hidden},
                                     .tp_split = SPLIT_NONE,
                                     .invariant = !r->layout.sequence_parallel,
                                     .init = {INIT_NORMAL, s->router.init_std}});
}

static int64_t moe_counters(const void *spec) {
    return router_counters(((const MoeSpec *)spec)->router.experts);
}

/* ---- capacity ---- */

/* Returns an expert's capacity for a microbatch: tokens * topk / experts times the capacity factor, rounded up, but at
 * most `tokens`. */
static int64_t capacity(const Tape *t, const MoeSpec *s, const Tensor *x) {
    if (s->capacity_factor == 0 || tape_microbatch(t)->dropless) return 0;
    const int64_t tokens = x->dim[0] * x->dim[1] * tape_axis(t, AXIS_TP) * tape_axis(t, AXIS_CP);
    const double share = (double)(tokens * s->router.topk) / (double)s->router.experts;
    return (int64_t)fmin(ceil(share * s->capacity_factor), (double)tokens);
}

/* Returns the maximum number of rows for one expert: the capacity times the number of microbatches whose ranks
 * (TP x CP) overlap the expert's group (ETP x EP). The ranks of a microbatch and those of an expert's group are
 * consecutive within a pipeline stage. */
static int64_t room(const Tape *t, int64_t capacity) {
    const int group = tape_axis(t, AXIS_ETP) * tape_axis(t, AXIS_EP),
              each = tape_axis(t, AXIS_TP) * tape_axis(t, AXIS_CP),
              rank = tape_group(t, 1u << AXIS_TP | 1u << AXIS_CP | 1u << AXIS_DP).rank,
              first = rank / group * group;
    return capacity * ((first + group - 1) / each - first / each + 1);
}

/* ---- experts ---- */

static GroupedLayer layer(Param *weight, Param *bias, Tensor *scale, const Quantiser *q) {
    return (GroupedLayer){&weight->value, bias ? &bias->value : NULL, scale, q};
}

typedef struct ExpertActivation {
    ActivationAttr attr;
    Tensor *scale; /* factors of the rows, or NULL */
} ExpertActivation;

static Tensor *activated(Tape *t, void *self, Tensor *x) {
    const ExpertActivation *a = self;
    return a->scale ? op_scaled_activation(t, x, a->attr, a->scale) : op_activation(t, x, a->attr);
}

/* Returns the experts' outputs for rows that are grouped by expert. `offset` contains the index of each
 * expert's first row. By default, the input and the bias of the second GEMM are multiplied by the
 * probabilities. Multiplying the GEMM's output instead would be equivalent, because the GEMM is linear. */
static Tensor *experts_forward(Tape *t, const Moe *m, Tensor *rows_r1h, Tensor *probs_r11, Tensor *offset) {
    if (m->spec->probs_on_input) {
        tape_module_begin(t, OFFLOAD_EXPERT_FC1);
        rows_r1h = op_scale_rows(t, rows_r1h, probs_r11, false);
        tape_module_end(t);
        /* Ranks may hold partial sums of the rows' gradient; these must not be rounded before they are added. */
        tape_grad_off_grid(rows_r1h);
    }
    tape_module_begin(t, OFFLOAD_MOE_ACT);
    Tensor *h = op_grouped_linear(t, rows_r1h, layer(m->fc1, m->fc1_bias, NULL, m->fc1_quantiser), offset),
           *scale = m->spec->probs_on_input ? NULL : probs_r11;
    tape_module_end(t);
    ExpertActivation *a = tape_alloc(t, sizeof *a);
    *a = (ExpertActivation){m->spec->activation, scale};
    const bool discards = m->spec->recompute_activation;
    h = discards ? tape_block_discarded(t, activated, a, h) : activated(t, a, h);
    Tensor *y = op_grouped_linear(t, h, layer(m->fc2, m->fc2_bias, scale, m->fc2_quantiser), offset);
    if (discards) tape_discard(t, h);
    return y;
}

/* Groups the rows by expert. */
static Tensor *experts_input(Tape *t, Tensor *rows, const Dispatch *d) {
    tape_module_begin(t, OFFLOAD_EXPERT_FC1);
    Tensor *x = op_permute(t, rows, d);
    tape_module_end(t);
    return x;
}

/* Does the same as experts_forward for expert-tensor-parallel ranks that have different rows. Each rank gathers all
 * rows, groups them by expert and multiplies them by its part of the weights. */
static Tensor *gathered_forward(Tape *t, const Moe *m, Tensor *rows, Tensor *probs, const Dispatch *sort) {
    rows = experts_input(t, op_redistribute(t, rows, AXIS_ETP, SPMD_R, 0), sort);
    probs = op_permute(t, op_redistribute(t, probs, AXIS_ETP, SPMD_R, 0), sort);
    Tensor *y = op_unpermute(t, experts_forward(t, m, rows, probs, sort->offset), sort);
    return op_redistribute(t, y, AXIS_ETP, SPMD_V, 0);
}

/* Projects the routed experts' input down to the latent width; widened() projects the experts' output up
 * again. */
static Tensor *narrowed(Tape *t, const Moe *m, Tensor *x) {
    return m->spec->latent ? linear_forward(t, &m->to_latent, x) : x;
}

static Tensor *widened(Tape *t, const Moe *m, Tensor *y) {
    return m->spec->latent ? linear_forward(t, &m->from_latent, y) : y;
}

static Tensor *shared_output(Tape *t, const Moe *m, Tensor *x, Activated hidden) {
    Tensor *y = mlp_output(t, &m->shared, hidden);
    return m->shared_gate ? op_scale_rows(t, y, op_gate_logits(t, x, &m->shared_gate->value, NULL), true) : y;
}

static Tensor *shared_forward(Tape *t, void *self, Tensor *x) {
    const Moe *m = self;
    return shared_output(t, m, x, mlp_hidden(t, &m->shared, x));
}

/* An all-to-all sends the rows to their experts' ranks while the shared expert's first GEMM runs. A second
 * all-to-all returns the experts' outputs while the shared expert's second GEMM runs. Finally, the experts'
 * outputs are summed for each token. If `shares` is false, the shared expert is omitted. */
static Tensor *by_all_to_all(Tape *t, const Moe *m, Tensor *x, Routing *r, int64_t experts, DispatchAttr a,
                             bool shares) {
    const Dispatch d = op_dispatch(t, r, m->spec->router.experts, (DispatchAttr){0});
    const Arrival to = op_plan_arrival(t, &d, experts, a);
    const Moving rows = op_send_to_experts(t, op_permute(t, narrowed(t, m, x), &d), &to),
                 probs = op_send_to_experts(t, op_permute_probs(t, r->probs, &d), &to);
    Activated hidden;
    Tensor *shared = NULL;
    if (shares) hidden = mlp_hidden(t, &m->shared, x);
    Tensor *here = op_arrive(t, rows);
    const Moving back =
        op_return_from_experts(t, gathered_forward(t, m, here, op_arrive(t, probs), &to.sort), &to);
    if (shares) shared = shared_output(t, m, x, hidden);
    Tensor *y = widened(t, m, op_unpermute(t, op_arrive(t, back), &d));
    return shares ? op_add(t, y, shared) : y;
}

static Tensor *gather(Tape *t, Tensor *x) {
    return op_redistribute(t, op_to_expert_view(t, x), AXIS_EP, SPMD_R, 0);
}

/* Each expert-parallel rank gathers all tokens, and computes the outputs of its experts. A reduce-scatter sums
 * the outputs of all ranks. */
static Tensor *by_all_gather(Tape *t, const Moe *m, Tensor *x, Routing *r, int64_t experts, DispatchAttr a) {
    const bool alone = tape_axis(t, AXIS_ETP) == 1;
    const Routing all = {gather(t, r->probs), gather(t, r->expert)};
    DispatchAttr own = a;
    own.pad &= alone;
    own.local = true;
    own.first = experts * tape_context(t)->layout->mesh.coordinate[AXIS_EP];
    const Dispatch d = op_dispatch(t, &all, experts, own);
    Tensor *gathered = gather(t, narrowed(t, m, x)),
           *rows = alone ? experts_input(t, gathered, &d) : op_permute(t, gathered, &d),
           *probs = op_permute_probs(t, all.probs, &d), *y;
    if (alone)
        y = experts_forward(t, m, rows, probs, d.offset);
    else {
        const Dispatch sort = op_plan_gathered(t, &d, a);
        y = gathered_forward(t, m, rows, probs, &sort);
    }
    y = op_to_dense_view(t, op_redistribute(t, op_unpermute(t, y, &d), AXIS_EP, SPMD_V, 0));
    return widened(t, m, y);
}

static Tensor *on_one_rank(Tape *t, const Moe *m, Tensor *x, Routing *r, DispatchAttr a) {
    const Dispatch d = op_dispatch(t, r, m->spec->router.experts, a);
    Tensor *y = experts_forward(t, m, experts_input(t, narrowed(t, m, x), &d),
                                op_permute_probs(t, r->probs, &d), d.offset);
    return widened(t, m, op_unpermute(t, y, &d));
}

/* During generation, ranks can have different numbers of tokens; only the all-to-all supports this. Tensor-parallel
 * ranks have the same tokens and route equal parts of them; the number of tokens is a multiple of the number of
 * tensor-parallel ranks. */
static Tensor *moe_forward(Tape *t, const void *self, const Feed *feed, Tensor *cache, Tensor *x) {
    (void)cache;
    const Moe *m = self;
    const MoeSpec *s = m->spec;
    const int64_t experts = m->fc2->rows / width(s); /* number of experts on this rank */
    const bool ranks = tape_context(t)->layout, moves = ranks && (s->all_to_all || feed->cache),
               cuts = feed->cache && tape_axis(t, AXIS_TP) > 1, shares = s->shared_ffn,
               overlaps = shares && moves && !cuts && !s->recompute_shared;
    Tensor *own = cuts ? op_redistribute(t, x, AXIS_TP, SPMD_V, 0) : x;
    Routing r = router_forward(t, &m->router, own);
    DispatchAttr a = {.capacity = capacity(t, s, own), .pad = s->pad, .by_position = s->drop_by_position};
    if (ranks && a.capacity)
        r = op_drop(t, &r, s->router.experts,
                    (DispatchAttr){.capacity = a.capacity, .by_position = a.by_position});
    if (ranks) a.capacity = room(t, a.capacity);
    Tensor *y = moves   ? by_all_to_all(t, m, own, &r, experts, a, overlaps)
                : ranks ? by_all_gather(t, m, own, &r, experts, a)
                        : on_one_rank(t, m, own, &r, a);
    if (cuts) y = op_redistribute(t, y, AXIS_TP, SPMD_I, 0);
    if (!shares || overlaps) return y;
    Tensor *shared =
        s->recompute_shared ? tape_block(t, shared_forward, (void *)m, x) : shared_forward(t, (void *)m, x);
    return op_add(t, y, shared);
}

static double moe_flops(const void *spec, double s) {
    const MoeSpec *m = spec;
    const double hidden = (double)m->router.hidden, matrices = mlp_matrices(m->activation.kind),
                 routed = matrices * (double)(m->router.topk * m->ffn * width(m)),
                 shared = matrices * (double)m->shared_ffn * hidden;
    return 6 * s * (routed + shared + 2 * (double)m->latent * hidden);
}

const BranchOps moe_branch = {.size = sizeof(Moe),
                              .init = moe_init,
                              .forward = moe_forward,
                              .flops = moe_flops,
                              .counters = moe_counters};
