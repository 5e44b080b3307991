/* y = a + b. In the backward pass, both inputs share dy without a copy. In op_contiguous, the gradient is
 * copied or added. */
#include "ops/residual.h"

#include "base/fault.h"
#include "kernels/ops.h"
#include "tape/tape_backward.h"
#include "tape/tape_ops.h"

static void residual_backward(Tape *t, const Node *n, Need need) {
    Tensor *dy = tape_grad(t, n->call.out[0]);
    tape_grad_share(t, n->call.in[0], dy, need);
    tape_grad_share(t, n->call.in[1], dy, need);
}

void residual_record(Tape *t, Tensor *a, Tensor *b, Tensor *sum) {
    tape_record(t, &OPS[OP_add], (Call){.in = {a, b}, .out = {sum}}, 0, residual_backward);
}

Tensor *residual_sum(Tape *t, Tensor *a, Tensor *b) {
    /* SPMD types are checked before the shape, because a missing collective can also cause a wrong shape. */
    tape_check(t, &OPS[OP_add], &(Call){.in = {a, b}});
    CHECK(tensor_same_shape(a, b), "add: the operands differ in shape");
    Tensor *y = tape_tensor(t, (DType)a->dtype, a->ndim, a->dim);
    tape_check(t, &OPS[OP_add], &(Call){.in = {a, b}, .out = {y}});
    return y;
}

Tensor *op_add(Tape *t, Tensor *a, Tensor *b) {
    Tensor *y = residual_sum(t, a, b);
    tape_run(t, &OPS[OP_add], (Call){.in = {a, b}, .out = {y}}, 0, residual_backward);
    return y;
}

static void copy_backward(Tape *t, const Node *n, Need need) {
    Tensor *dx = tape_grad_out(t, n->call.in[0], need);
    if (dx) tape_call(t, n->op, (Call){.in = {tape_grad(t, n->call.out[0])}, .out = {dx}});
}

Tensor *op_contiguous(Tape *t, Tensor *x) {
    Tensor *y = tape_tensor(t, (DType)x->dtype, x->ndim, x->dim);
    tape_run(t, &OPS[OP_copy], (Call){.in = {x}, .out = {y}}, 0, copy_backward);
    return y;
}
