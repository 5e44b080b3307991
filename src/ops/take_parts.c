#include "ops/take_parts.h"

#include <string.h>

#include "base/fault.h"
#include "kernels/ops.h"
#include "tape/tape_backward.h"
#include "tape/tape_ops.h"

typedef struct PartsAttr {
    RowRange range[TAKEN_PARTS];
    int parts;
} PartsAttr;

/* Copies rows of w to y, or adds rows of y to w. */
static void move_parts(Tape *t, const PartsAttr *a, const Tensor *w, const Tensor *y, bool adds) {
    int64_t at = 0;
    for (int i = 0; i < a->parts; i++) {
        Tensor rows = tensor_slice(w, 0, a->range[i].first, a->range[i].n),
               part = tensor_slice(y, 0, at, a->range[i].n);
        if (adds) rows.flags |= TENSOR_ACCUM;
        tape_call(t, &OPS[OP_copy], (Call){.in = {adds ? &part : &rows}, .out = {adds ? &rows : &part}});
        at += a->range[i].n;
    }
}

static void take_parts_backward(Tape *t, const Node *n, Need need) {
    Tensor *dw = tape_grad_out(t, n->call.in[0], need);
    if (!dw) return;
    if (!(dw->flags & TENSOR_ACCUM)) tape_call(t, &OPS[OP_fill], (Call){.out = {dw}, .attr = &(FillAttr){0}});
    move_parts(t, n->call.attr, dw, tape_grad(t, n->call.out[0]), true);
}

Tensor *op_take_parts(Tape *t, Tensor *w, const RowRange *range, int parts) {
    PartsAttr attr = {.parts = parts};
    int64_t dim[TENSOR_DIMS];
    memcpy(dim, w->dim, sizeof dim);
    memcpy(attr.range, range, (size_t)parts * sizeof *range);
    CHECK(spmd_on(w->spmd, AXIS_CP) == SPMD_R, "op 'take_parts': w must be R over cp");
    const DType precise = w->dtype == F64 ? F64 : F32;
    /* Only the parameter itself, not a part of it, can be an operand, because ZeRO-3 gathers operands. */
    Tensor *whole = tape_scratch(t, precise, w->ndim, dim);
    tape_call(t, &OPS[OP_copy], (Call){.in = {w}, .out = {whole}});
    dim[0] = 0;
    for (int i = 0; i < parts; i++) dim[0] += range[i].n;
    Tensor *y = tape_tensor(t, precise, w->ndim, dim);
    y->spmd = spmd_with(w->spmd, AXIS_CP, SPMD_V);
    tape_grad_off_grid(y); /* like the gradient of a parameter */
    move_parts(t, &attr, whole, y, false);
    tape_drop(t, whole);
    tape_record(t, &OPS[OP_take_parts], (Call){.in = {w}, .out = {y}, .attr = &attr}, sizeof attr,
                take_parts_backward);
    return y;
}
