/* y = xielu(x). kernels/cpu/xielu.c contains the formulas. An alpha's gradient is summed over each row, and
 * then over the rows, like a bias's gradient. If tensor-parallel ranks hold different columns of a row, each
 * rank's gradient of an alpha is a partial sum. The backward pass overwrites or accumulates dx and the alphas'
 * gradients. */
#include "ops/xielu.h"

#include "kernels/attr.h"
#include "kernels/ops.h"
#include "tape/tape_backward.h"
#include "tape/tape_ops.h"

enum { X, ALPHA_P, ALPHA_N, BETA, EPS }; /* operands */

/* Returns memory for the sums over rows, or NULL if dalpha is NULL. */
static Tensor *row_sums(Tape *t, const Tensor *x, const Tensor *dalpha) {
    if (!dalpha) return NULL;
    Tensor *sums = tape_scratch(t, x->dtype == F64 ? F64 : F32, 3, (int64_t[]){x->dim[0], x->dim[1], 1});
    tape_grad_off_grid(sums);
    return sums;
}

static void sum_rows(Tape *t, Tensor *sums, Tensor *dalpha) {
    const LinearAttr attr = {0};
    if (!sums) return;
    tape_call(t, &OPS[OP_linear_wgrad], (Call){.in = {sums, sums}, .out = {NULL, dalpha}, .attr = &attr});
    tape_drop(t, sums);
}

static void xielu_backward(Tape *t, const Node *n, Need need) {
    Tensor *const *in = n->call.in, *dx = tape_grad_out(t, in[X], need),
                  *dp = tape_grad_out(t, in[ALPHA_P], need), *dn = tape_grad_out(t, in[ALPHA_N], need);
    if (!dx && !dp && !dn) return;
    Tensor *p = row_sums(t, in[X], dp), *negative = row_sums(t, in[X], dn);
    tape_call(t, &OPS[OP_xielu_grad],
              (Call){.in = {tape_grad(t, n->call.out[0]), in[X], in[ALPHA_P], in[ALPHA_N], in[BETA], in[EPS]},
                     .out = {dx, p, negative}});
    sum_rows(t, p, dp);
    sum_rows(t, negative, dn);
}

Tensor *op_xielu(Tape *t, Tensor *x, XieluNumbers a) {
    Tensor *y = tape_tensor(t, (DType)x->dtype, x->ndim, x->dim);
    tape_run(t, &OPS[OP_xielu], (Call){.in = {x, a.alpha_p, a.alpha_n, a.beta, a.eps}, .out = {y}}, 0,
             xielu_backward);
    return y;
}
