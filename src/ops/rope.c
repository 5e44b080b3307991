/* Rotation by position; formula in kernels/cpu/rope.c. A rotation is orthogonal, so the gradient is dy
 * rotated back. dx is written or added to. */
#include "ops/rope.h"

#include "base/fault.h"
#include "kernels/ops.h"

static void rope_backward(Tape *t, const Node *n, Need need) {
    Tensor *const *in = n->call.in;
    Tensor *dx = tape_grad_out(t, in[0], need);
    if (!dx) return;
    RopeAttr attr = *(const RopeAttr *)n->call.attr;
    attr.inverse = !attr.inverse;
    tape_call(t, &OPS[OP_rope],
              (Call){.in = {tape_grad(t, n->call.out[0]), in[1], in[2], in[3]}, .out = {dx}, .attr = &attr});
}

Tensor *op_rope(Tape *t, Tensor *x, Tensor *cos, Tensor *sin, Tensor *position, RopeAttr attr) {
    CHECK(x->ndim == 5 && attr.dim % 2 == 0 && attr.dim <= x->dim[4], "rope: %d of %lld elements of a head",
          attr.dim, (long long)x->dim[4]);
    CHECK(tensor_same_shape(cos, sin) && cos->dim[1] == attr.dim / 2, "rope: the tables do not fit dim %d",
          attr.dim);
    CHECK(position->dim[0] == x->dim[1] && position->dim[1] == x->dim[0],
          "rope: x has %lld positions of %lld samples", (long long)x->dim[0], (long long)x->dim[1]);
    Tensor *y = tape_tensor(t, (DType)x->dtype, 5, x->dim);
    tape_run(t, &OPS[OP_rope], (Call){.in = {x, cos, sin, position}, .out = {y}, .attr = &attr}, sizeof attr,
             rope_backward);
    return y;
}
