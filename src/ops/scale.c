/* y = factor * x. The backward pass overwrites dx with factor * dy, or adds it to dx. */
#include "ops/scale.h"

#include "kernels/attr.h"
#include "kernels/ops.h"
#include "tape/tape_backward.h"
#include "tape/tape_ops.h"

static void scale_backward(Tape *t, const Node *n, Need need) {
    Tensor *dx = tape_grad_out(t, n->call.in[0], need);
    if (dx)
        tape_call(t, n->op, (Call){.in = {tape_grad(t, n->call.out[0])}, .out = {dx}, .attr = n->call.attr});
}

Tensor *op_scale(Tape *t, Tensor *x, double factor) {
    if (factor == 1) return x;
    const FactorAttr attr = {factor};
    Tensor *y = tape_tensor(t, (DType)x->dtype, x->ndim, x->dim);
    tape_run(t, &OPS[OP_scale], (Call){.in = {x}, .out = {y}, .attr = &attr}, sizeof attr, scale_backward);
    return y;
}
