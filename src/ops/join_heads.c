/* The backward pass splits the gradient into the gradients of a and b. */
#include "ops/join_heads.h"

#include "base/fault.h"
#include "kernels/ops.h"
#include "tape/tape_backward.h"
#include "tape/tape_ops.h"

/* Returns elements [first, first + width) of each head of y. */
static Tensor part_of(const Tensor *y, int64_t first, int64_t width) {
    Tensor v = *y;
    v.data = tensor_at(y, first);
    v.dim[4] = width;
    return v;
}

static void put(Tape *t, Tensor x, Tensor part) {
    for (int i = 2; i < 4; i++)
        if (x.dim[i] != part.dim[i]) x.dim[i] = part.dim[i], x.stride[i] = 0;
    tape_call(t, &OPS[OP_copy], (Call){.in = {&x}, .out = {&part}});
}

static void join_backward(Tape *t, const Node *n, Need need) {
    Tensor *a = n->call.in[0], *b = n->call.in[1], *dy = tape_grad(t, n->call.out[0]);
    Tensor *da = tape_grad_out(t, a, need), *db = tape_grad_out(t, b, need);
    Tensor first = part_of(dy, 0, a->dim[4]), second = part_of(dy, a->dim[4], b->dim[4]);
    const bool shared = b->dim[2] * b->dim[3] < a->dim[2] * a->dim[3];
    if (da) tape_call(t, &OPS[OP_copy], (Call){.in = {&first}, .out = {da}});
    if (db) tape_call(t, &OPS[shared ? OP_sum_heads : OP_copy], (Call){.in = {&second}, .out = {db}});
}

Tensor *op_join_heads(Tape *t, Tensor *a, Tensor *b) {
    bool fits = a->ndim == 5 && b->ndim == 5;
    for (int i = 0; i < 4; i++)
        fits = fits && (a->dim[i] == b->dim[i] || (i > 1 && b->dim[2] * b->dim[3] == 1));
    char x[100], y[100];
    CHECK(fits, "join_heads: the shapes %s and %s are not compatible", tensor_describe(a, x, sizeof x),
          tensor_describe(b, y, sizeof y));
    const int64_t d = a->dim[4], e = b->dim[4];
    Tensor *out =
        tape_tensor(t, (DType)a->dtype, 5, (int64_t[]){a->dim[0], a->dim[1], a->dim[2], a->dim[3], d + e});
    const Call call = {.in = {a, b}, .out = {out}};
    tape_check(t, &OPS[OP_copy], &call);
    put(t, *a, part_of(out, 0, d));
    put(t, *b, part_of(out, d, e));
    tape_record(t, &OPS[OP_join_heads], call, 0, join_backward);
    return out;
}
