#include "nn/pooler.h"

#include "ops/redistribute.h"
#include "ops/take_row.h"

Linear whole_layer(Registry *r, const char *name, int64_t in, int64_t out, double init_std, bool invariant) {
    return linear_new(r, (LinearSpec){.name = name,
                                      .in = in,
                                      .out = out,
                                      .bias = true,
                                      .tp_split = SPLIT_NONE,
                                      .invariant = invariant,
                                      .init_std = init_std});
}

Linear pooler_new(Registry *r, int64_t hidden, double init_std) {
    return whole_layer(r, "pooler.dense", hidden, hidden, init_std, true);
}

/* Returns the first position of the full sequence as [1, b, h] with SPMD type I. The sequence may be sharded over
 * tensor-parallel ranks. */
static Tensor *first_position(Tape *t, Tensor *x) {
    Tensor *first = op_take_row(t, x, 0);
    if (spmd_on(x->spmd, AXIS_TP) != SPMD_V) return first;
    return op_take_row(t, op_redistribute(t, first, AXIS_TP, SPMD_I, 0), 0);
}

Tensor *pooler_forward(Tape *t, const Linear *dense, Tensor *x) {
    return op_activation(t, linear_forward(t, dense, first_position(t, x)),
                         (ActivationAttr){.kind = ACT_TANH});
}
