/* Permuting and adding up are each other's gradients. dx and dp are written or added to. */
#include "ops/dispatch.h"

#include "base/fault.h"
#include "kernels/ops.h"

Dispatch op_dispatch(Tape *t, const Routing *r, int64_t experts, DispatchAttr attr) {
    const int64_t copies = tensor_count(r->expert), room = experts * attr.capacity,
                  rows = attr.capacity > 0 && (attr.pad || room < copies) ? room : copies;
    CHECK(attr.capacity > 0 || !attr.pad, "dispatch: nothing to pad to without a capacity");
    Dispatch d = {.row = tape_tensor(t, I64, 3, r->expert->dim),
                  .copy = tape_tensor(t, I64, 1, &rows),
                  .offset = tape_tensor(t, I64, 1, (int64_t[]){experts + 1})};
    tape_call(t, &OPS[OP_dispatch],
              (Call){.in = {r->probs, r->expert}, .out = {d.row, d.copy, d.offset}, .attr = &attr});
    return d;
}

/* ---- rows ---- */

static void permute_backward(Tape *t, const Node *n, Need need) {
    Tensor *const *in = n->call.in, *dx = tape_grad_out(t, in[0], need);
    if (dx)
        tape_call(
            t, &OPS[OP_unpermute],
            (Call){.in = {tape_grad(t, n->call.out[0]), in[2], in[1]}, .out = {dx}, .attr = n->call.attr});
}

static void unpermute_backward(Tape *t, const Node *n, Need need) {
    Tensor *const *in = n->call.in, *dy = tape_grad_out(t, in[0], need);
    if (dy)
        tape_call(
            t, &OPS[OP_permute],
            (Call){.in = {tape_grad(t, n->call.out[0]), in[2], in[1]}, .out = {dy}, .attr = n->call.attr});
}

static Tensor *permute(Tape *t, Tensor *x, const Dispatch *d, int64_t copies) {
    const PermuteAttr attr = {copies};
    CHECK(tensor_rows(x) * copies == tensor_count(d->row),
          "permute: %lld rows, %lld copies of each, %lld planned", (long long)tensor_rows(x),
          (long long)copies, (long long)tensor_count(d->row));
    Tensor *y = tape_tensor(t, (DType)x->dtype, 3, (int64_t[]){d->copy->dim[0], 1, tensor_width(x)});
    tape_run(t, &OPS[OP_permute], (Call){.in = {x, d->copy, d->row}, .out = {y}, .attr = &attr}, sizeof attr,
             permute_backward);
    return y;
}

Tensor *op_permute(Tape *t, Tensor *x, const Dispatch *d) { return permute(t, x, d, d->row->dim[2]); }

Tensor *op_permute_probs(Tape *t, Tensor *probs, const Dispatch *d) {
    const int64_t dim[] = {tensor_count(probs), 1, 1}, stride[] = {1, 1, 1};
    return permute(t, tape_view(t, probs, 0, 3, dim, stride), d, 1);
}

Tensor *op_unpermute(Tape *t, Tensor *y, const Dispatch *d) {
    const int64_t *dim = d->row->dim;
    const PermuteAttr attr = {dim[2]};
    Tensor *x = tape_tensor(t, (DType)y->dtype, 3, (int64_t[]){dim[0], dim[1], tensor_width(y)});
    tape_run(t, &OPS[OP_unpermute], (Call){.in = {y, d->row, d->copy}, .out = {x}, .attr = &attr},
             sizeof attr, unpermute_backward);
    return x;
}

/* ---- scale ---- */

static void scale_backward(Tape *t, const Node *n, Need need) {
    Tensor *x = n->call.in[0], *p = n->call.in[1];
    Tensor *dx = tape_grad_out(t, x, need), *dp = tape_grad_out(t, p, need);
    if (dx || dp)
        tape_call(t, &OPS[OP_scale_rows_grad],
                  (Call){.in = {tape_grad(t, n->call.out[0]), x, p}, .out = {dx, dp}, .attr = n->call.attr});
}

Tensor *op_scale_rows(Tape *t, Tensor *x, Tensor *p, bool sigmoid) {
    CHECK(tensor_rows(x) == tensor_count(p), "scale_rows: %lld rows, %lld factors", (long long)tensor_rows(x),
          (long long)tensor_count(p));
    const ScaleAttr attr = {sigmoid};
    Tensor *y = tape_tensor(t, (DType)x->dtype, x->ndim, x->dim);
    tape_run(t, &OPS[OP_scale_rows], (Call){.in = {x, p}, .out = {y}, .attr = &attr}, sizeof attr,
             scale_backward);
    return y;
}
