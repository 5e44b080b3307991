/* y = x * factors (kernels/cpu/dropout.c). The factors are not stored: the backward pass generates them again.
 * The backward pass overwrites or accumulates dx. */
#include "ops/dropout.h"

#include "kernels/attr.h"
#include "kernels/ops.h"
#include "tape/tape_backward.h"
#include "tape/tape_ops.h"

static void dropout_backward(Tape *t, const Node *n, Need need) {
    Tensor *dx = tape_grad_out(t, n->call.in[0], need);
    if (dx)
        tape_call(t, n->op, (Call){.in = {tape_grad(t, n->call.out[0])}, .out = {dx}, .attr = n->call.attr});
}

/* `whole` means that x's positions are not sharded. */
static Tensor *multiply(Tape *t, OpNumber op, Tensor *x, double rate, uint64_t site, bool whole) {
    const MicrobatchContext *microbatch = tape_microbatch(t);
    if (rate == 0 || !microbatch->training) return x;
    DropoutAttr attr = {
        .rate = rate, .seed = tape_context(t)->seed, .site = site, .first_sample = microbatch->first_sample};
    attr.seq_total = x->dim[0];
    if (!whole) attr.slice = tape_slice(t, x, &attr.seq_total);
    Tensor *y = tape_tensor(t, (DType)x->dtype, x->ndim, x->dim);
    tape_run(t, &OPS[op], (Call){.in = {x}, .out = {y}, .attr = &attr}, sizeof attr, dropout_backward);
    return y;
}

Tensor *op_dropout(Tape *t, Tensor *x, double rate, uint64_t site) {
    return multiply(t, OP_dropout, x, rate, site, false);
}

Tensor *op_dropout_samples(Tape *t, Tensor *x, double rate, uint64_t site) {
    return multiply(t, OP_dropout, x, rate, site, true);
}

Tensor *op_jitter(Tape *t, Tensor *x, double rate, uint64_t site) {
    return multiply(t, OP_jitter, x, rate, site, false);
}
