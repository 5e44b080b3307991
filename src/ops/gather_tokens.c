#include "ops/gather_tokens.h"

#include "base/fault.h"
#include "kernels/ops.h"
#include "ops/ulysses.h"
#include "tape/tape_ops.h"

/* Returns the number of ranks on the axis over which the tokens of x are sharded. */
static int cut(const Tape *t, const Tensor *x, Axis a) {
    return spmd_on(x->spmd, a) == SPMD_V ? tape_axis(t, a) : 1;
}

void tokens_check_whole(const Tape *t, const char *op, const Tensor *x) {
    for (int a = AXIS_TP; a <= AXIS_CP; a++)
        CHECK(cut(t, x, a) == 1,
              "op '%s', axis %s: an operand is V, but the op needs all tokens of the microbatch", op,
              axis_name(a));
}

void tokens_check_same(const Tape *t, const char *op, const Tensor *x, const Tensor *y) {
    for (int a = AXIS_TP; a <= AXIS_CP; a++)
        CHECK(cut(t, x, a) == cut(t, y, a),
              "op '%s', axis %s: one operand is V, but the other has all tokens", op, axis_name(a));
}

Tensor *tokens_whole(Tape *t, Tensor *x) {
    const int tp = cut(t, x, AXIS_TP), cp = cut(t, x, AXIS_CP);
    if (tp * cp == 1) return x;
    const SpmdType type = spmd_with(spmd_with(x->spmd, AXIS_TP, SPMD_I), AXIS_CP, SPMD_I);
    const unsigned axes = (unsigned)(tp > 1) << AXIS_TP | (unsigned)(cp > 1) << AXIS_CP;
    Tensor *y = tape_tensor(t, (DType)x->dtype, 3, (int64_t[]){tp * cp * x->dim[0], x->dim[1], x->dim[2]});
    Tensor *all = exchange_message(t, (DType)x->dtype, cp, tp * tensor_count(x), type);
    y->spmd = type;
    tape_comm(t, &OPS[OP_gather_tokens], (CommCall){.kind = COMM_ALL_GATHER, .group = tape_group(t, axes)}, x,
              all);
    exchange_rows(t, y, all, 0, false);
    tape_drop(t, all);
    return y;
}

static Tensor rows(const Tensor *x, int64_t first, int64_t n) {
    const int64_t line = x->stride[0] * (int64_t)dtype_size((DType)x->dtype);
    Tensor v =
        tensor_make((char *)x->data + first * line, (DType)x->dtype, 3, (int64_t[]){n, x->dim[1], x->dim[2]});
    v.spmd = x->spmd;
    return v;
}

Tensor *tokens_own(Tape *t, Tensor *whole, const Tensor *x) {
    if (cut(t, x, AXIS_TP) * cut(t, x, AXIS_CP) == 1) return whole;
    int64_t total, n = x->dim[0];
    const SequenceSlice slice = tape_slice(t, x, &total);
    Tensor *y = tape_tensor(t, (DType)whole->dtype, 3, (int64_t[]){n, whole->dim[1], whole->dim[2]});
    y->spmd = x->spmd;
    for (int64_t row = 0, run; row < n; row += run) {
        run = slice_run(&slice, row, n - row);
        Tensor from = rows(whole, slice_position(&slice, row), run), to = rows(y, row, run);
        tape_call(t, &OPS[OP_copy], (Call){.in = {&from}, .out = {&to}});
    }
    return y;
}

void tokens_sum(Tape *t, Tensor *x, unsigned axes) {
    for (int a = 0; a < AXES; a++)
        if (axes & 1u << a) x->spmd = spmd_with(x->spmd, a, SPMD_I);
    if (!tape_context(t)->layout || tape_group(t, axes).size == 1) return;
    tape_comm(t, &OPS[OP_sum_tokens], (CommCall){.kind = COMM_ALL_REDUCE, .group = tape_group(t, axes)}, x,
              x);
}
