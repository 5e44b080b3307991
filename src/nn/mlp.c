#include "nn/mlp.h"

Mlp mlp_new(Registry *r, MlpSpec s) {
    bool gated = s.activation == ACT_SWIGLU;
    LinearSpec fc1 = {
        .name = arena_printf(r->arena, "%s.linear_fc1", s.name),
        .in = s.hidden,
        .out = gated ? 2 * s.ffn : s.ffn,
        .bias = s.bias,
        .tp_split = 0,
        .init_std = s.fc1_init_std,
        .quant = s.quant,
    };
    if (gated) {
        fc1.groups = 1;
        fc1.n_parts = 2;
        fc1.split_parts = true;
        fc1.parts[0] = (ParamPart){"gate", s.ffn};
        fc1.parts[1] = (ParamPart){"up", s.ffn};
    }
    LinearSpec fc2 = {
        .name = arena_printf(r->arena, "%s.linear_fc2", s.name),
        .in = s.ffn,
        .out = s.hidden,
        .bias = s.bias,
        .tp_split = 1,
        .init_std = s.fc2_init_std,
        .quant = s.quant,
    };
    return (Mlp){.fc1 = linear_new(r, fc1), .fc2 = linear_new(r, fc2), .activation = s.activation};
}

Tensor *mlp_forward(Tape *t, const Mlp *m, Tensor *x_sbh) {
    return linear_on_activated(t, &m->fc2, linear_activated(t, &m->fc1, x_sbh, m->activation));
}
