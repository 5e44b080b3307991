#include "nn/moe.h"

#include <math.h>

#include "ops/activation.h"
#include "ops/grouped.h"
#include "ops/residual.h"

static Param *experts_new(Registry *r, const MoeSpec *s, const char *which, int64_t out, int64_t in,
                          int tp_split, double std) {
    const bool gated = tp_split == 0 && s->activation == ACT_SWIGLU;
    ParamSpec p = {.name = arena_printf(r->arena, "%s.experts.%s.weight", s->name, which),
                   .ndim = 2,
                   .dim = {s->router.experts * out, in},
                   .tp_split = tp_split,
                   .expert = true,
                   .split_parts = tp_split == 0,
                   .init = {INIT_NORMAL, std},
                   .groups = s->router.experts,
                   .n_parts = gated ? 2 : 1};
    if (gated)
        p.parts[0] = (ParamPart){"gate", out / 2}, p.parts[1] = (ParamPart){"up", out / 2};
    else
        p.parts[0] = (ParamPart){"whole", out};
    return param_add(r, p);
}

Moe moe_new(Registry *r, MoeSpec s) {
    const int64_t hidden = s.router.hidden, fc1_out = s.activation == ACT_SWIGLU ? 2 * s.ffn : s.ffn;
    Moe m = {.spec = s, .router = router_new(r, s.router)};
    m.fc1 = experts_new(r, &s, "linear_fc1", fc1_out, hidden, 0, s.fc1_init_std);
    m.fc2 = experts_new(r, &s, "linear_fc2", hidden, s.ffn, 1, s.fc2_init_std);
    if (!s.shared_ffn) return m;
    m.shared = mlp_new(r, (MlpSpec){.name = arena_printf(r->arena, "%s.shared_experts", s.name),
                                    .hidden = hidden,
                                    .ffn = s.shared_ffn,
                                    .activation = s.activation,
                                    .fc1_init_std = s.fc1_init_std,
                                    .fc2_init_std = s.fc2_init_std});
    if (s.shared_gate)
        m.shared_gate =
            param_add(r, (ParamSpec){.name = arena_printf(r->arena, "%s.shared_experts.gate_weight", s.name),
                                     .ndim = 2,
                                     .dim = {1, hidden},
                                     .tp_split = SPLIT_NONE,
                                     .invariant = !r->layout.sequence_parallel,
                                     .init = {INIT_NORMAL, s.router.init_std}});
    return m;
}

/* An expert's share of the copies of all tokens, times the factor; more tokens than there are it cannot get.
 */
static int64_t capacity(const MoeSpec *s, int64_t tokens) {
    if (s->capacity_factor == 0) return 0;
    const double share = (double)(tokens * s->router.topk) / (double)s->router.experts;
    return (int64_t)fmin(ceil(share * s->capacity_factor), (double)tokens);
}

/* Rows grouped by expert, their probabilities and where the experts' rows begin -> rows. The probabilities
 * are applied before the second product, which is linear. */
static Tensor *experts_forward(Tape *t, const Moe *m, Tensor *rows_r1h, Tensor *probs_r11, Tensor *offset) {
    Tensor *h = op_grouped_linear(t, rows_r1h, &m->fc1->value, offset);
    h = op_scale_rows(t, op_activation(t, h, m->spec.activation), probs_r11, false);
    return op_grouped_linear(t, h, &m->fc2->value, offset);
}

static Tensor *shared_forward(Tape *t, const Moe *m, Tensor *x) {
    Tensor *y = mlp_forward(t, &m->shared, x);
    return m->shared_gate ? op_scale_rows(t, y, op_gate_logits(t, x, &m->shared_gate->value), true) : y;
}

Tensor *moe_forward(Tape *t, const Moe *m, Tensor *x) {
    const MoeSpec *s = &m->spec;
    Routing routing = router_forward(t, &m->router, x);
    const Dispatch d = op_dispatch(t, &routing, s->router.experts,
                                   (DispatchAttr){.capacity = capacity(s, x->dim[0] * x->dim[1]),
                                                  .pad = s->pad,
                                                  .by_position = s->drop_by_position});
    Tensor *y = experts_forward(t, m, op_permute(t, x, &d), op_permute_probs(t, routing.probs, &d), d.offset);
    y = op_unpermute(t, y, &d);
    return s->shared_ffn ? op_add(t, y, shared_forward(t, m, x)) : y;
}
