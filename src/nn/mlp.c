#include "nn/mlp.h"

#include <math.h>

static Tensor *number_new(Registry *r, const char *mlp, const char *name, double value, unsigned flags) {
    const ParamSpec number = {
        .name = arena_printf(r->arena, "%s.activation_func.%s", mlp, name),
        .ndim = 1,
        .dim = {1},
        /* each tensor-parallel rank computes a summand of the gradient, from its columns */
        .tp_split = SPLIT_NONE,
        .init = {INIT_CONSTANT, value},
        .flags = PARAM_NO_DECAY | flags,
    };
    return &param_add(r, number)->value;
}

/* Registers xIELU's trained numbers and constants with the initial values from transformers' XIELUActivation:
 * alpha_p and alpha_n start at 0.8, and are stored as log(exp(0.8) - 1) and log(exp(0.8 - beta) - 1). */
static XieluNumbers xielu_new(Registry *r, const char *mlp) {
    const double alpha = 0.8, beta = 0.5;
    return (XieluNumbers){.alpha_p = number_new(r, mlp, "alpha_p", log(expm1(alpha)), 0),
                          .alpha_n = number_new(r, mlp, "alpha_n", log(expm1(alpha - beta)), 0),
                          .beta = number_new(r, mlp, "beta", beta, PARAM_BUFFER),
                          .eps = number_new(r, mlp, "eps", -1e-6, PARAM_BUFFER)};
}

Mlp mlp_new(Registry *r, const char *name, const MlpSpec *s) {
    const bool gated = activation_is_gated(s->activation.kind);
    LinearSpec fc1 = {
        .name = arena_printf(r->arena, "%s.linear_fc1", name),
        .in = s->hidden,
        .out = gated ? 2 * s->ffn : s->ffn,
        .bias = s->bias,
        .tp_split = 0,
        .init_std = s->fc1_init_std,
        .quant = s->quant,
    };
    if (gated) {
        fc1.groups = 1;
        fc1.n_parts = 2;
        fc1.split_parts = true;
        fc1.parts[0] = (ParamPart){"gate", s->ffn};
        fc1.parts[1] = (ParamPart){"up", s->ffn};
    }
    LinearSpec fc2 = {
        .name = arena_printf(r->arena, "%s.linear_fc2", name),
        .in = s->ffn,
        .out = s->hidden,
        .bias = s->bias,
        .tp_split = 1,
        .init_std = s->fc2_init_std,
        .quant = s->quant,
    };
    Mlp m = {.fc1 = linear_new(r, fc1), .fc2 = linear_new(r, fc2), .activation = s->activation};
    if (m.activation.kind == ACT_XIELU) m.xielu = xielu_new(r, name);
    return m;
}

static Activated hidden(Tape *t, const Mlp *m, Tensor *x, bool halfway) {
    if (m->activation.kind != ACT_XIELU) return linear_activated(t, &m->fc1, x, m->activation, halfway);
    Tensor *pre = linear_forward(t, &m->fc1, x);
    if (halfway) tape_pause_halfway(t);
    return (Activated){.act = op_xielu(t, pre, m->xielu), .kind = ACT_XIELU};
}

Activated mlp_hidden(Tape *t, const Mlp *m, Tensor *x_sbh) { return hidden(t, m, x_sbh, false); }

Tensor *mlp_output(Tape *t, const Mlp *m, Activated hidden_sbf) {
    return linear_on_activated(t, &m->fc2, hidden_sbf);
}

Tensor *mlp_forward(Tape *t, const Mlp *m, Tensor *x_sbh) {
    return mlp_output(t, m, hidden(t, m, x_sbh, true));
}

int mlp_matrices(Activation activation) { return activation_is_gated(activation) ? 3 : 2; }

static void mlp_branch_init(void *self, Registry *r, const char *name, const void *spec, Tensor *counters) {
    (void)counters;
    *(Mlp *)self = mlp_new(r, name, spec);
}

static Tensor *mlp_branch_forward(Tape *t, const void *self, const Feed *feed, Tensor *cache, Tensor *x_sbh) {
    (void)feed, (void)cache;
    return mlp_forward(t, self, x_sbh);
}

static double mlp_flops(const void *spec, double s) {
    const MlpSpec *m = spec;
    return 6 * s * mlp_matrices(m->activation.kind) * (double)m->hidden * (double)m->ffn;
}

const BranchOps mlp_branch = {
    .size = sizeof(Mlp), .init = mlp_branch_init, .forward = mlp_branch_forward, .flops = mlp_flops};
