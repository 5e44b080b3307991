/* y = (x - mean) * rstd * g + bias; formulas in kernels/cpu/norm.c. mean and rstd are kept in the
 * arithmetic's type for the backward. dx is written or added to, dgain and dbias are added to the main
 * gradients. */
#include "ops/norm.h"

#include "base/fault.h"
#include "kernels/ops.h"

static void backward(Tape *t, const Node *n, Need need) {
    Tensor *x = n->call.in[0], *gain = n->call.in[1], *bias = n->call.in[2];
    Tensor *dx = tape_grad_out(t, x, need), *dgain = tape_grad_out(t, gain, need);
    Tensor *dbias = bias ? tape_grad_out(t, bias, need) : NULL;
    if (!dx && !dgain && !dbias) return;
    tape_call(t, &OPS[OP_norm_grad],
              (Call){.in = {tape_grad(t, n->call.out[0]), x, gain, n->call.out[1], n->call.out[2]},
                     .out = {dx, dgain, dbias},
                     .attr = n->call.attr});
}

Tensor *op_norm(Tape *t, Tensor *x, Tensor *gain, Tensor *bias, NormAttr attr) {
    CHECK(x->ndim >= 3 && gain->dim[0] == tensor_width(x), "norm: x is %lld wide, the gain %lld",
          (long long)tensor_width(x), (long long)gain->dim[0]);
    CHECK(!(attr.rms && bias), "RMSNorm has no bias");
    DType precise = x->dtype == F64 ? F64 : F32;
    int64_t rows = tensor_rows(x);
    Tensor *y = tape_tensor(t, (DType)x->dtype, x->ndim, x->dim), *rstd = tape_tensor(t, precise, 1, &rows);
    Tensor *mean = attr.rms ? NULL : tape_tensor(t, precise, 1, &rows);
    tape_run(t, &OPS[OP_norm], (Call){.in = {x, gain, bias}, .out = {y, rstd, mean}, .attr = &attr},
             sizeof attr, backward);
    return y;
}
