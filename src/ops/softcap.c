/* y = cap * tanh(x / cap). dx overwrites x. The backward pass computes dx from x and dy alone, because the loss
 * overwrites y with dy. */
#include "ops/softcap.h"

#include "kernels/attr.h"
#include "kernels/ops.h"
#include "tape/tape_backward.h"
#include "tape/tape_ops.h"

static void softcap_backward(Tape *t, const Node *n, Need need) {
    Tensor *x = n->call.in[0], *dx = tape_grad_in_place(t, x, need);
    if (dx)
        tape_call(t, &OPS[OP_softcap_grad],
                  (Call){.in = {tape_grad(t, n->call.out[0]), x}, .out = {dx}, .attr = n->call.attr});
}

Tensor *op_softcap(Tape *t, Tensor *x, double cap) {
    if (cap == 0) return x;
    const SoftcapAttr attr = {cap};
    Tensor *y = tape_tensor(t, (DType)x->dtype, x->ndim, x->dim);
    tape_run(t, &OPS[OP_softcap], (Call){.in = {x}, .out = {y}, .attr = &attr}, sizeof attr,
             softcap_backward);
    return y;
}
