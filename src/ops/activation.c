/* y = act(x). kernels/cpu/activation.c contains the formulas. The backward pass overwrites or accumulates
 * dx. */
#include "ops/activation.h"

#include <string.h>

#include "base/fault.h"
#include "kernels/ops.h"
#include "tape/tape_backward.h"
#include "tape/tape_ops.h"

static void activation_backward(Tape *t, const Node *n, Need need) {
    Tensor *x = n->call.in[0], *dx = tape_grad_out(t, x, need);
    if (dx)
        tape_call(t, &OPS[OP_activation_grad],
                  (Call){.in = {tape_grad(t, n->call.out[0]), x}, .out = {dx}, .attr = n->call.attr});
}

void activation_record(Tape *t, Tensor *x, Tensor *y, Activation kind, bool through_reader) {
    const ActivationAttr attr = {.kind = kind};
    y->spmd = x->spmd;
    y->flags |= x->flags & TENSOR_NEEDS_GRAD;
    tape_record(t, &OPS[OP_activation], (Call){.in = {x}, .out = {y}, .attr = &attr}, sizeof attr,
                through_reader ? NULL : activation_backward);
}

Tensor *op_activation(Tape *t, Tensor *x, ActivationAttr attr) {
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
    tape_run(t, &OPS[OP_activation], (Call){.in = {x}, .out = {y}, .attr = &attr}, sizeof attr,
             activation_backward);
    return y;
}
