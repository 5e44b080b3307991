#include "nn/linear.h"

#include <string.h>

#include "ops/linear.h"
#include "param/quantized.h"

Linear linear_new(Registry *r, LinearSpec s) {
    ParamSpec weight = {
        .name = arena_printf(r->arena, "%s.weight", s.name),
        .ndim = 2,
        .dim = {s.out, s.in},
        .tp_split = s.tp_split,
        .invariant = s.tp_split == SPLIT_NONE && s.invariant,
        .split_parts = s.split_parts,
        .init = {INIT_NORMAL, s.init_std},
        .flags = s.weight_flags,
        .groups = s.groups,
        .heads = s.heads,
        .n_parts = s.n_parts,
        .quantized = s.quant.weights,
    };
    memcpy(weight.parts, s.parts, sizeof s.parts);
    Linear l = {.weight = param_add(r, weight),
                .flags = s.tp_split == 0 ? LINEAR_GATHER_IN : LINEAR_REDUCE_OUT};
    if (r->layout.sequence_parallel) l.flags |= LINEAR_SEQUENCE;
    if (s.bias) {
        ParamSpec bias = weight;
        bias.name = arena_printf(r->arena, "%s.bias", s.name);
        bias.ndim = 1;
        bias.tp_split = s.tp_split == 0 ? 0 : SPLIT_NONE;
        bias.invariant = s.tp_split == SPLIT_NONE ? s.invariant : !r->layout.sequence_parallel;
        bias.init = (Init){INIT_CONSTANT, 0};
        bias.quantized = F64;
        bias.flags = PARAM_NO_DECAY | (s.fixed_bias ? PARAM_BUFFER : 0);
        l.bias = param_add(r, bias);
    }
    l.quantiser = quantize_new(r, s.name, l.weight, s.quant);
    return l;
}

static LinearLayer layer_of(const Linear *l) {
    return (LinearLayer){.w_oi = &l->weight->value,
                         .bias_o = l->bias ? &l->bias->value : NULL,
                         .flags = l->flags,
                         .quantiser = l->quantiser,
                         .inverse_o = param_is_quantized(l->weight) ? &l->weight->inverse : NULL};
}

Tensor *linear_forward(Tape *t, const Linear *l, Tensor *x_sbi) {
    const LinearLayer layer = layer_of(l);
    return op_linear(t, x_sbi, &layer);
}

Activated linear_activated(Tape *t, const Linear *l, Tensor *x_sbi, ActivationAttr activation, bool halfway) {
    const LinearLayer layer = layer_of(l);
    return op_linear_activated(t, x_sbi, &layer, activation, halfway);
}

Tensor *linear_on_activated(Tape *t, const Linear *l, Activated x_sbi) {
    const LinearLayer layer = layer_of(l);
    return op_linear_on_activated(t, x_sbi, &layer);
}
