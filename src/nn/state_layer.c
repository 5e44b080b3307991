#include "nn/state_layer.h"

#include <math.h>
#include <string.h>

#include "ops/take_parts.h"
#include "ops/ulysses.h"
#include "tape/tape_ops.h"

Param *head_param(Registry *r, const char *scope, const char *name, int64_t rows, Init init) {
    return param_add(r, (ParamSpec){.name = arena_printf(r->arena, "%s.%s", scope, name),
                                    .ndim = 1,
                                    .dim = {rows},
                                    .tp_split = 0,
                                    .init = init,
                                    .flags = PARAM_NO_DECAY});
}

/* The initial values are PyTorch's for Conv1d: the number of taps is the number of inputs of a channel. */
static ParamSpec conv_spec(int64_t taps, const ParamPart parts[3]) {
    ParamSpec s = {.tp_split = 0,
                   .split_parts = true,
                   .init = {INIT_UNIFORM, 1 / sqrt((double)taps)},
                   .groups = 1,
                   .n_parts = 3};
    memcpy(s.parts, parts, 3 * sizeof *parts);
    for (int i = 0; i < 3; i++) s.dim[0] += parts[i].rows;
    return s;
}

Param *conv_weight(Registry *r, const char *scope, int64_t taps, const ParamPart parts[3]) {
    ParamSpec s = conv_spec(taps, parts);
    s.name = arena_printf(r->arena, "%s.conv1d.weight", scope);
    s.ndim = 2, s.dim[1] = taps, s.flags = PARAM_NO_MUON;
    return param_add(r, s);
}

Param *conv_bias(Registry *r, const char *scope, int64_t taps, const ParamPart parts[3]) {
    ParamSpec s = conv_spec(taps, parts);
    s.name = arena_printf(r->arena, "%s.conv1d.bias", scope);
    s.ndim = 1, s.flags = PARAM_NO_DECAY;
    return param_add(r, s);
}

Tensor *columns_of(Tape *t, Tensor *x, int64_t first, int64_t n) {
    return tape_view(t, x, first, 3, (int64_t[]){x->dim[0], x->dim[1], n}, x->stride);
}

Tensor *as_heads(Tape *t, Tensor *x, int64_t g) {
    const int64_t b = x->dim[1], d = tensor_count(x) / (x->dim[0] * b * g);
    return tape_view(t, x, 0, 5, (int64_t[]){x->dim[0], b, g, 1, d}, (int64_t[]){b * g * d, g * d, d, d, 1});
}

Tensor *as_rows(Tape *t, Tensor *x) {
    const int64_t b = x->dim[1], n = x->dim[2] * x->dim[3] * x->dim[4];
    return tape_view(t, x, 0, 3, (int64_t[]){x->dim[0], b, n}, (int64_t[]){b * n, n, 1});
}

Tensor *heads_at(Tape *t, Tensor *x, int64_t first, int64_t g, int64_t d) {
    return tape_view(t, x, first, 5, (int64_t[]){x->dim[0], x->dim[1], g, 1, d},
                     (int64_t[]){x->stride[0], x->stride[1], d, d, 1});
}

Tensor *exchanged(Tape *t, Tensor *x, Group ranks, int64_t first, int64_t g, int64_t d) {
    return op_seq_to_heads(t, heads_at(t, x, first, g, d), ranks);
}

Tensor *param_share_of(Tape *t, const Param *p, int64_t first, int64_t n) {
    return op_take_parts(t, (Tensor *)&p->value, &(RowRange){first, n}, 1);
}
