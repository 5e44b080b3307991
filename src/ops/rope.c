/* Rotates heads by position. kernels/cpu/rope.c contains the formula. A rotation is orthogonal, so dx is dy
 * rotated in the opposite direction. The backward pass overwrites or accumulates dx. */
#include "ops/rope.h"

#include "base/fault.h"
#include "kernels/ops.h"
#include "tape/tape_backward.h"
#include "tape/tape_ops.h"

static void rope_backward(Tape *t, const Node *n, Need need) {
    Tensor *const *in = n->call.in;
    Tensor *dx = tape_grad_out(t, in[0], need);
    if (!dx) return;
    RopeAttr attr = *(const RopeAttr *)n->call.attr;
    attr.inverse = !attr.inverse;
    tape_call(t, &OPS[OP_rope],
              (Call){.in = {tape_grad(t, n->call.out[0]), in[1], in[2], in[3]}, .out = {dx}, .attr = &attr});
}

static void check(const Tensor *x, const Tensor *cos, const Tensor *sin, const Tensor *position,
                  RopeAttr attr) {
    CHECK(x->ndim == 5 && attr.dim % 2 == 0 && attr.dim <= x->dim[4],
          "rope: dim is %d, but a head has %lld elements", attr.dim, (long long)x->dim[4]);
    CHECK(tensor_same_shape(cos, sin) && cos->dim[1] == attr.dim / 2,
          "rope: the tables are not compatible with dim %d", attr.dim);
    CHECK(position->dim[0] == x->dim[1] && position->dim[1] == x->dim[0],
          "rope: x has %lld positions and %lld samples, but the position tensor has another shape",
          (long long)x->dim[0], (long long)x->dim[1]);
}

Tensor *op_rope(Tape *t, Tensor *x, Tensor *cos, Tensor *sin, Tensor *position, RopeAttr attr) {
    check(x, cos, sin, position, attr);
    Tensor *y = tape_tensor(t, (DType)x->dtype, 5, x->dim);
    tape_run(t, &OPS[OP_rope], (Call){.in = {x, cos, sin, position}, .out = {y}, .attr = &attr}, sizeof attr,
             rope_backward);
    return y;
}

/* ---- in place ---- */

typedef struct InPlaceAttr {
    RopeAttr rope; /* must be first, because the kernels read it */
    int64_t groups, all, n;
} InPlaceAttr;

/* Returns the heads of x that are rotated: [s,b,groups,n,d]. */
static Tensor rotated_heads(const Tensor *x, const InPlaceAttr *a) {
    const int64_t d = x->dim[2] / (a->groups * a->all);
    Tensor v =
        tensor_make(x->data, (DType)x->dtype, 5, (int64_t[]){x->dim[0], x->dim[1], a->groups, a->n, d});
    v.stride[0] = x->stride[0], v.stride[1] = x->stride[1], v.stride[2] = a->all * d, v.stride[3] = d;
    v.spmd = x->spmd;
    return v;
}

static void rotate(Tape *t, const Tensor *x, Tensor *const *tables, const InPlaceAttr *a) {
    Tensor from = rotated_heads(x, a), to = from;
    check(&from, tables[0], tables[1], tables[2], a->rope);
    tape_call(t, &OPS[OP_rope],
              (Call){.in = {&from, tables[0], tables[1], tables[2]}, .out = {&to}, .attr = &a->rope});
}

static void in_place_backward(Tape *t, const Node *n, Need need) {
    if (!(need & NEED_DX)) return;
    InPlaceAttr back = *(const InPlaceAttr *)n->call.attr;
    Tensor *g = tape_grad(t, n->call.out[0]);
    CHECK(g->refs == 1, "rope in place: the gradient is shared with another tensor");
    back.rope.inverse = !back.rope.inverse;
    rotate(t, g, &n->call.in[1], &back);
    tape_grad_share(t, n->call.in[0], g, need);
}

Tensor *op_rope_in_place(Tape *t, Tensor *x, int64_t groups, int64_t all, int64_t n, Tensor *cos, Tensor *sin,
                         Tensor *position, RopeAttr attr) {
    const InPlaceAttr a = {attr, groups, all, n};
    Call call = {.in = {x, cos, sin, position}, .out = {tape_alias(t, x)}, .attr = &a};
    rotate(t, x, &call.in[1], &a);
    tape_record(t, &OPS[OP_rope], call, sizeof a, in_place_backward);
    return call.out[0];
}
