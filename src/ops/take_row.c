#include "ops/take_row.h"

#include "base/fault.h"
#include "kernels/ops.h"
#include "tape/tape_backward.h"
#include "tape/tape_ops.h"

typedef struct RowAttr {
    int64_t row;
} RowAttr;

static Tensor row_of(const Tensor *x, int64_t row) {
    Tensor v = *x;
    v.data = tensor_at(x, row * x->stride[0]);
    v.dim[0] = 1;
    return v;
}

static void take_row_backward(Tape *t, const Node *n, Need need) {
    Tensor *dx = tape_grad_out(t, n->call.in[0], need);
    if (!dx) return;
    if (!(dx->flags & TENSOR_ACCUM)) tape_call(t, &OPS[OP_fill], (Call){.out = {dx}, .attr = &(FillAttr){0}});
    Tensor part = row_of(dx, ((const RowAttr *)n->call.attr)->row);
    part.flags |= TENSOR_ACCUM;
    tape_call(t, &OPS[OP_copy], (Call){.in = {tape_grad(t, n->call.out[0])}, .out = {&part}});
}

Tensor *op_take_row(Tape *t, Tensor *x, int64_t row) {
    CHECK(x->ndim == 3 && row >= 0 && row < x->dim[0], "take_row: row %lld is outside the %lld rows",
          (long long)row, (long long)x->dim[0]);
    Tensor *y = tape_tensor(t, (DType)x->dtype, 3, (int64_t[]){1, x->dim[1], x->dim[2]});
    const RowAttr attr = {row};
    const Call call = {.in = {x}, .out = {y}, .attr = &attr};
    tape_check(t, &OPS[OP_take_row], &call);
    Tensor part = row_of(x, row);
    tape_call(t, &OPS[OP_copy], (Call){.in = {&part}, .out = {y}});
    tape_record(t, &OPS[OP_take_row], call, sizeof attr, take_row_backward);
    return y;
}

Tensor *op_take_rows(Tape *t, Tensor *x, Tensor *rows) {
    CHECK(!tape_is_recording(t) && x->ndim == 3 && x->dim[1] == 1, "take_rows: x has %d dimensions", x->ndim);
    Tensor *y = tape_tensor(t, (DType)x->dtype, 3, (int64_t[]){rows->dim[0], 1, x->dim[2]});
    const PermuteAttr attr = {.copies = 1};
    tape_run(t, &OPS[OP_permute], (Call){.in = {x, rows}, .out = {y}, .attr = &attr}, sizeof attr, NULL);
    return y;
}
