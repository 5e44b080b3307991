/* y = (x - mean) * rstd * g + bias. kernels/cpu/norm.c contains the formulas. mean and rstd are kept in the
 * arithmetic type for the backward pass, which overwrites or accumulates dx, dgain and dbias. */
#include "ops/norm.h"

#include "base/fault.h"
#include "kernels/ops.h"
#include "ops/residual.h"
#include "tape/tape_backward.h"
#include "tape/tape_ops.h"

static void norm_backward(Tape *t, const Node *n, Need need) {
    Tensor *x = n->call.in[0], *gain = n->call.in[1], *bias = n->call.in[2];
    Tensor *dx = tape_grad_out(t, x, need), *dgain = tape_grad_out(t, gain, need);
    Tensor *dbias = bias ? tape_grad_out(t, bias, need) : NULL;
    if (!dx && !dgain && !dbias) return;
    tape_call(t, &OPS[OP_norm_grad],
              (Call){.in = {tape_grad(t, n->call.out[0]), x, gain, n->call.out[1], n->call.out[2]},
                     .out = {dx, dgain, dbias},
                     .attr = n->call.attr});
}

/* Creates the outputs and their SPMD types. SPMD types are checked before the width, because a missing
 * all-gather of x also causes a wrong width. */
static Call norm_call(Tape *t, Tensor *x, Tensor *gain, Tensor *bias, const NormAttr *attr) {
    DType precise = x->dtype == F64 ? F64 : F32;
    int64_t rows = tensor_rows(x);
    Tensor *y = tape_tensor(t, (DType)x->dtype, x->ndim, x->dim), *rstd = tape_tensor(t, precise, 1, &rows);
    Tensor *mean = attr->rms ? NULL : tape_tensor(t, precise, 1, &rows);
    const Call call = {.in = {x, gain, bias}, .out = {y, rstd, mean}, .attr = attr};
    tape_check(t, &OPS[OP_norm], &call);
    CHECK(x->ndim >= 3 && gain->dim[0] == tensor_width(x),
          "norm: the width of x is %lld, but the gain has %lld elements", (long long)tensor_width(x),
          (long long)gain->dim[0]);
    CHECK(!(attr->rms && bias), "RMSNorm has no bias");
    return call;
}

Tensor *op_norm(Tape *t, Tensor *x, Tensor *gain, Tensor *bias, NormAttr attr) {
    const Call call = norm_call(t, x, gain, bias, &attr);
    tape_call(t, &OPS[OP_norm], call);
    tape_record(t, &OPS[OP_norm], call, sizeof attr, norm_backward);
    return call.out[0];
}

/* In the exact lane, op_add_norm runs two ops, because the sum must be rounded to the grid before the norm. */
Tensor *op_add_norm(Tape *t, Tensor *a, Tensor *b, Tensor *gain, Tensor *bias, NormAttr attr, Tensor **sum) {
    if (tape_context(t)->exact) {
        *sum = op_add(t, a, b);
        return op_norm(t, *sum, gain, bias, attr);
    }
    Tensor *x = *sum = residual_sum(t, a, b);
    x->flags |= (a->flags | b->flags) & TENSOR_NEEDS_GRAD; /* the rule for SPMD types reads the flag */
    const Call norm = norm_call(t, x, gain, bias, &attr);
    tape_call(
        t, &OPS[OP_add_norm],
        (Call){.in = {a, b, gain, bias}, .out = {x, norm.out[0], norm.out[1], norm.out[2]}, .attr = &attr});
    residual_record(t, a, b, x);
    tape_record(t, &OPS[OP_norm], norm, sizeof attr, norm_backward);
    return norm.out[0];
}
