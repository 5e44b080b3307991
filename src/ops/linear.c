/* y = x w^T + bias. Backward: dx = dy w; dw = dy^T x and dbias = sum of dy, dbias in the canonical order of
 * kernels/ops.def. dx is written or added to, dw and dbias are added to the main gradients. */
#include "ops/linear.h"

#include "base/fault.h"
#include "kernels/attr.h"
#include "kernels/ops.h"

static void backward(Tape *t, const Node *n, Need need) {
    Tensor *x = n->call.in[0], *w = n->call.in[1], *bias = n->call.in[2], *dy = tape_grad(t, n->call.out[0]);
    Tensor *dx = tape_grad_out(t, x, need);
    if (dx) tape_call(t, &OPS[OP_linear_dgrad], (Call){.in = {dy, w}, .out = {dx}, .attr = n->call.attr});
    Tensor *dw = tape_grad_out(t, w, need), *dbias = bias ? tape_grad_out(t, bias, need) : NULL;
    if (dw || dbias)
        tape_call(t, &OPS[OP_linear_wgrad], (Call){.in = {dy, x}, .out = {dw, dbias}, .attr = n->call.attr});
}

Tensor *op_linear(Tape *t, Tensor *x, Tensor *w, Tensor *bias) {
    CHECK(x->ndim == 3 && w->ndim == 2 && x->dim[2] == w->dim[1],
          "linear: x is %lld wide, the weight takes %lld", (long long)tensor_width(x),
          (long long)tensor_width(w));
    CHECK(!bias || bias->dim[0] == w->dim[0], "linear: the bias has %lld elements, the output %lld",
          (long long)bias->dim[0], (long long)w->dim[0]);
    LinearAttr attr = {.fixed_order = tape_context(t)->batch_invariant};
    Tensor *y = tape_tensor(t, (DType)x->dtype, 3, (int64_t[]){x->dim[0], x->dim[1], w->dim[0]});
    tape_run(t, &OPS[OP_linear], (Call){.in = {x, w, bias}, .out = {y}, .attr = &attr}, sizeof attr,
             backward);
    return y;
}
