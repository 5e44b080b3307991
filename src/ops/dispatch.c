/* The backward pass of op_permute is op_unpermute, and vice versa. The backward passes overwrite or accumulate
 * dx and dp. */
#include "ops/dispatch.h"

#include <math.h>

#include "base/fault.h"
#include "kernels/ops.h"
#include "ops/gather_tokens.h"
#include "tape/tape_backward.h"
#include "tape/tape_ops.h"

int64_t dispatch_expected(const Tape *t, int64_t copies, const Tensor *row, int64_t ranks, int64_t experts) {
    const double share = tape_context(t)->experts_share;
    const int64_t k = row->dim[2], most = ranks * tensor_count(row) / k * (k < experts ? k : experts);
    return (int64_t)fmin((double)copies * (share > 0 ? share : 1), (double)most);
}

/* Returns the number of token copies that experts [first, first + experts) receive. If expert-tensor-parallel
 * ranks have different tokens, each rank uses the largest number in the group, because an all-gather of rows
 * requires equal sizes. A dry run assumes a number. */
static int64_t taken(Tape *t, const Tensor *expert, int64_t first, int64_t experts) {
    const RunContext *run = tape_context(t);
    const int64_t copies = tensor_count(expert);
    if (run->device->kind == DEVICE_NULL) {
        device_wait(run->device); /* as device_view does */
        const int64_t sharing = spmd_on(expert->spmd, AXIS_EP) == SPMD_R ? tape_axis(t, AXIS_EP) : 1;
        return dispatch_expected(t, (copies + sharing - 1) / sharing, expert, 1, experts);
    }
    int64_t n = 0;
    DeviceView view = device_view(run->device, expert->data, tensor_bytes(expert), VIEW_READ);
    const int64_t *at = view.data;
    for (int64_t i = 0; i < copies; i++) n += at[i] >= first && at[i] < first + experts;
    device_view_end(&view);
    if (spmd_on(expert->spmd, AXIS_ETP) == SPMD_V)
        comm_all_reduce(run->comm, tape_group(t, 1u << AXIS_ETP), "most_copies", COMM_MAX, I64, &n, 1);
    return n;
}

Dispatch op_dispatch(Tape *t, const Routing *r, int64_t experts, DispatchAttr attr) {
    const int64_t copies = tensor_count(r->expert), room = experts * attr.capacity,
                  rows = attr.capacity > 0 && (attr.pad || room < copies) ? room
                         : attr.local && !attr.capacity ? taken(t, r->expert, attr.first, experts)
                                                        : copies;
    CHECK(attr.capacity > 0 || !attr.pad, "dispatch: padding needs a capacity");
    if (attr.capacity) { /* the choice of dropped copies depends on all tokens */
        tokens_check_whole(t, "dispatch", r->expert);
        if (r->probs) tokens_check_whole(t, "dispatch", r->probs);
    }
    Dispatch d = {.tokens = r->expert->spmd,
                  .row = tape_tensor(t, I64, 3, r->expert->dim),
                  .copy = tape_tensor(t, I64, 1, &rows),
                  .offset = tape_tensor(t, I64, 1, (int64_t[]){experts + 1})};
    tape_call(t, &OPS[OP_dispatch],
              (Call){.in = {r->probs, r->expert}, .out = {d.row, d.copy, d.offset}, .attr = &attr});
    d.row->spmd = r->expert->spmd;
    if (spmd_on(d.tokens, AXIS_EP) == SPMD_R) /* ranks with the same tokens compute different rows */
        d.copy->spmd = spmd_with(0, AXIS_EP, SPMD_V);
    return d;
}

/* ---- rows ---- */

/* Checks that the SPMD type of x is `want`. If `spread` is true, V is also accepted instead of P over EP. */
static void check_type(const Tape *t, const char *op, const Tensor *x, SpmdType want, bool spread) {
    for (int a = 0; a < AXES; a++) {
        const Spmd s = spmd_on(x->spmd, a), w = spmd_on(want, a);
        CHECK(tape_axis(t, a) == 1 || s == w || (spread && w == SPMD_P && a == AXIS_EP && s == SPMD_V),
              "op '%s', axis %s: the rows have type %c, but must have type %c, like their routing", op,
              axis_name(a), spmd_letter(s), spmd_letter(w));
    }
}

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
    check_type(t, "permute", x, d->tokens, false);
    CHECK(tensor_rows(x) * copies == tensor_count(d->row),
          "permute: x has %lld rows with %lld copies of each, but the plan has %lld copies",
          (long long)tensor_rows(x), (long long)copies, (long long)tensor_count(d->row));
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
    check_type(t, "unpermute", y, spmd_dual_type(d->tokens), true);
    Tensor *x = tape_tensor(t, (DType)y->dtype, 3, (int64_t[]){dim[0], dim[1], tensor_width(y)});
    const Call call = {.in = {y, d->row, d->copy}, .out = {x}, .attr = &attr};
    x->spmd = spmd_dual_type(d->tokens);
    tape_call(t, &OPS[OP_unpermute], call);
    tape_record(t, &OPS[OP_unpermute], call, sizeof attr, unpermute_backward);
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
    /* SPMD types are checked before the shape, because a wrong type can also cause a wrong shape. */
    tape_check(t, &OPS[OP_scale_rows], &(Call){.in = {x, p}});
    CHECK(tensor_rows(x) == tensor_count(p), "scale_rows: there are %lld rows, but %lld factors",
          (long long)tensor_rows(x), (long long)tensor_count(p));
    const ScaleAttr attr = {sigmoid};
    Tensor *y = tape_tensor(t, (DType)x->dtype, x->ndim, x->dim);
    tape_run(t, &OPS[OP_scale_rows], (Call){.in = {x, p}, .out = {y}, .attr = &attr}, sizeof attr,
             scale_backward);
    return y;
}
