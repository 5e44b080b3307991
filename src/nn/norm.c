#include "nn/norm.h"

#include "kernels/ops.h"
#include "ops/norm.h"
#include "tape/tape_ops.h"

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
    Norm n = {.gain = attr.no_gain ? NULL : param_add(r, gain), .attr = attr};
    if (!attr.rms && !attr.no_bias) {
        ParamSpec bias = gain;
        bias.name = arena_printf(r->arena, "%s.bias", name);
        bias.init.value = 0;
        n.bias = param_add(r, bias);
    }
    return n;
}

static Tensor *gain_of(Tape *t, const Norm *n, const Tensor *x) {
    if (n->gain) return &n->gain->value;
    const int64_t width = tensor_width(x);
    Tensor *ones = tape_tensor(t, (DType)x->dtype, 1, &width);
    tape_call(t, &OPS[OP_fill], (Call){.out = {ones}, .attr = &(FillAttr){1}});
    return ones;
}

static Tensor *bias_of(const Norm *n) { return n->bias ? &n->bias->value : NULL; }

Tensor *norm_forward(Tape *t, const Norm *n, Tensor *x) {
    return op_norm(t, x, gain_of(t, n, x), bias_of(n), n->attr);
}

Tensor *norm_forward_sum(Tape *t, const Norm *n, Tensor **x, Tensor *branch) {
    return op_add_norm(t, *x, branch, gain_of(t, n, *x), bias_of(n), n->attr, x);
}
