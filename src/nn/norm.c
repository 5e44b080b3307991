#include "nn/norm.h"

#include "ops/norm.h"

Norm norm_new(Registry *r, const char *name, int64_t width, NormAttr attr) {
    ParamSpec gain = {
        .name = arena_printf(r->arena, "%s.weight", name),
        .ndim = 1,
        .dim = {width},
        .tp_split = SPLIT_NONE,
        .init = {INIT_CONSTANT, attr.one_plus ? 0 : 1},
        .flags = PARAM_NO_DECAY,
        .invariant = !r->layout.sequence_parallel,
    };
    Norm n = {.gain = param_add(r, gain), .attr = attr};
    if (!attr.rms && !attr.no_bias) {
        ParamSpec bias = gain;
        bias.name = arena_printf(r->arena, "%s.bias", name);
        bias.init.value = 0;
        n.bias = param_add(r, bias);
    }
    return n;
}

static Tensor *bias_of(const Norm *n) { return n->bias ? &n->bias->value : NULL; }

Tensor *norm_forward(Tape *t, const Norm *n, Tensor *x) {
    return op_norm(t, x, &n->gain->value, bias_of(n), n->attr);
}

Tensor *norm_forward_sum(Tape *t, const Norm *n, Tensor **x, Tensor *branch) {
    return op_add_norm(t, *x, branch, &n->gain->value, bias_of(n), n->attr, x);
}
