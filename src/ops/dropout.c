/* y = x * mask / (1 - rate). The mask is never stored: the backward draws it again. dx is written or added
 * to. */
#include "ops/dropout.h"

#include "kernels/attr.h"
#include "kernels/ops.h"

static void backward(Tape *t, const Node *n, Need need) {
    Tensor *dx = tape_grad_out(t, n->call.in[0], need);
    if (dx)
        tape_call(t, &OPS[OP_dropout],
                  (Call){.in = {tape_grad(t, n->call.out[0])}, .out = {dx}, .attr = n->call.attr});
}

Tensor *op_dropout(Tape *t, Tensor *x, double rate, uint64_t site) {
    const RunContext *run = tape_context(t);
    if (rate == 0 || !run->training) return x;
    DropoutAttr attr = {.rate = rate,
                        .seed = run->seed,
                        .site = site,
                        .first_sample = run->first_sample,
                        .seq_total = x->dim[0]};
    Tensor *y = tape_tensor(t, (DType)x->dtype, x->ndim, x->dim);
    tape_run(t, &OPS[OP_dropout], (Call){.in = {x}, .out = {y}, .attr = &attr}, sizeof attr, backward);
    return y;
}
