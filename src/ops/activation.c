/* y = act(x), or act(x) * scale for each row. kernels/cpu/activation.c contains the formulas. The backward pass
 * overwrites or accumulates dx and dscale. */
#include "ops/activation.h"

#include <string.h>

#include "base/fault.h"
#include "kernels/ops.h"
#include "ops/dispatch.h"
#include "tape/tape_backward.h"
#include "tape/tape_ops.h"

static void activation_backward(Tape *t, const Node *n, Need need) {
    Tensor *x = n->call.in[0], *scale = n->call.in[1];
    Tensor *dx = tape_grad_out(t, x, need), *dscale = scale ? tape_grad_out(t, scale, need) : NULL;
    if (dx || dscale)
        tape_call(t, &OPS[OP_activation_grad],
                  (Call){.in = {tape_grad(t, n->call.out[0]), x, scale},
                         .out = {dx, dscale},
                         .attr = n->call.attr});
}

void activation_record(Tape *t, Tensor *x, Tensor *y, Activation kind, bool through_reader) {
    const ActivationAttr attr = {.kind = kind};
    y->spmd = x->spmd;
    y->flags |= x->flags & TENSOR_NEEDS_GRAD;
    tape_record(t, &OPS[OP_activation], (Call){.in = {x}, .out = {y}, .attr = &attr}, sizeof attr,
                through_reader ? NULL : activation_backward);
}

static Tensor *activation(Tape *t, Tensor *x, ActivationAttr attr, Tensor *scale) {
    int64_t dim[TENSOR_DIMS];
    memcpy(dim, x->dim, sizeof dim);
    CHECK(attr.kind != ACT_XIELU, "activation: xIELU has parameters: use op_xielu");
    CHECK((attr.limit == 0 && attr.offset == 0) || attr.kind == ACT_SWIGLU || attr.kind == ACT_QUICK_GEGLU,
          "activation: kind %d supports neither a limit nor an offset", (int)attr.kind);
    if (activation_is_gated(attr.kind)) {
        CHECK(tensor_width(x) % 2 == 0, "activation: [gate | up] cannot be %lld wide",
              (long long)tensor_width(x));
        dim[x->ndim - 1] /= 2;
    }
    Tensor *y = tape_tensor(t, (DType)x->dtype, x->ndim, dim);
    tape_run(t, &OPS[OP_activation], (Call){.in = {x, scale}, .out = {y}, .attr = &attr}, sizeof attr,
             activation_backward);
    return y;
}

Tensor *op_activation(Tape *t, Tensor *x, ActivationAttr attr) { return activation(t, x, attr, NULL); }

/* In the exact lane, two ops run, because the activation must be rounded to the grid before it is scaled. */
Tensor *op_scaled_activation(Tape *t, Tensor *x, ActivationAttr attr, Tensor *scale) {
    if (tape_context(t)->exact) return op_scale_rows(t, activation(t, x, attr, NULL), scale, false);
    /* SPMD types are checked before the shape, because a wrong type can also cause a wrong shape. */
    tape_check(t, &OPS[OP_activation], &(Call){.in = {x, scale}});
    CHECK(tensor_rows(x) == tensor_count(scale), "activation: there are %lld rows, but %lld factors",
          (long long)tensor_rows(x), (long long)tensor_count(scale));
    return activation(t, x, attr, scale);
}
