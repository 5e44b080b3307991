/* kernels/cpu/gate.c contains the formulas. The backward pass overwrites gradients, or adds to them. */
#include "ops/gate.h"

#include "base/fault.h"
#include "kernels/ops.h"
#include "tape/tape_backward.h"
#include "tape/tape_ops.h"

static void gate_backward(Tape *t, const Node *n, Need need) {
    Tensor *const *in = n->call.in;
    Tensor *dx = tape_grad_out(t, in[0], need), *dz = tape_grad_out(t, in[1], need);
    if (dx || dz)
        tape_call(t, &OPS[OP_gate_grad],
                  (Call){.in = {tape_grad(t, n->call.out[0]), in[0], in[1]},
                         .out = {dx, dz},
                         .attr = n->call.attr});
}

Tensor *op_gate(Tape *t, Tensor *x, Tensor *z, GateAttr a) {
    CHECK(tensor_is_contiguous(x) && tensor_same_shape(x, z) && z->stride[z->ndim - 1] == 1,
          "gate: the gate has %lld rows of %lld elements, but x has %lld rows of %lld",
          (long long)tensor_rows(z), (long long)tensor_width(z), (long long)tensor_rows(x),
          (long long)tensor_width(x));
    Tensor *y = tape_tensor(t, (DType)x->dtype, x->ndim, x->dim);
    tape_run(t, &OPS[OP_gate], (Call){.in = {x, z}, .out = {y}, .attr = &a}, sizeof a, gate_backward);
    return y;
}
