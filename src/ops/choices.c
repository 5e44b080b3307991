#include "ops/choices.h"

#include "base/fault.h"
#include "kernels/ops.h"
#include "tape/tape_backward.h"
#include "tape/tape_ops.h"

static void copy_as(Tape *t, Tensor *from, const Tensor *like, Tensor *to) {
    Tensor x = *like;
    x.data = from->data;
    tape_call(t, &OPS[OP_copy], (Call){.in = {&x}, .out = {to}});
}

static void choices_backward(Tape *t, const Node *n, Need need) {
    Tensor *dx = tape_grad_out(t, n->call.in[0], need);
    if (dx) copy_as(t, tape_grad(t, n->call.out[0]), n->call.in[0], dx);
}

Tensor *op_choices(Tape *t, Tensor *x, int64_t n) {
    CHECK(x->ndim == 3 && x->dim[0] == 1 && x->dim[2] == 1 && x->dim[1] % n == 0 && tensor_is_contiguous(x),
          "choices: %lld numbers cannot be divided into %lld per question", (long long)x->dim[1],
          (long long)n);
    Tensor *y = tape_tensor(t, (DType)x->dtype, 3, (int64_t[]){1, x->dim[1] / n, n});
    const Call call = {.in = {x}, .out = {y}};
    tape_check(t, &OPS[OP_choices], &call);
    copy_as(t, x, y, y);
    tape_record(t, &OPS[OP_choices], call, 0, choices_backward);
    return y;
}
