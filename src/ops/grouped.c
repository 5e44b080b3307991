/* y = x w_e^T for the rows of each expert e. dx is written or added to, dw is added to the main gradient. */
#include "ops/grouped.h"

#include "base/fault.h"
#include "kernels/attr.h"
#include "kernels/ops.h"

static void grouped_backward(Tape *t, const Node *n, Need need) {
    Tensor *x = n->call.in[0], *w = n->call.in[1], *offset = n->call.in[2],
           *dy = tape_grad(t, n->call.out[0]);
    const void *attr = n->call.attr;
    Tensor *dx = tape_grad_out(t, x, need), *dw = tape_grad_out(t, w, need);
    if (dx)
        tape_call(t, &OPS[OP_grouped_linear_dgrad], (Call){.in = {dy, w, offset}, .out = {dx}, .attr = attr});
    if (dw)
        tape_call(t, &OPS[OP_grouped_linear_wgrad], (Call){.in = {dy, x, offset}, .out = {dw}, .attr = attr});
}

Tensor *op_grouped_linear(Tape *t, Tensor *x, Tensor *w, Tensor *offset) {
    const int64_t experts = offset->dim[0] - 1;
    CHECK(x->ndim == 3 && x->dim[1] == 1 && x->dim[2] == w->dim[1] && w->dim[0] % experts == 0,
          "grouped_linear: x is %lld wide, the weight of %lld experts is [%lld, %lld]",
          (long long)tensor_width(x), (long long)experts, (long long)w->dim[0], (long long)w->dim[1]);
    const LinearAttr attr = {.fixed_order = tape_context(t)->batch_invariant};
    Tensor *y = tape_tensor(t, (DType)x->dtype, 3, (int64_t[]){x->dim[0], 1, w->dim[0] / experts});
    tape_run(t, &OPS[OP_grouped_linear], (Call){.in = {x, w, offset}, .out = {y}, .attr = &attr}, sizeof attr,
             grouped_backward);
    return y;
}
