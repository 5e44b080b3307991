#include "nn/head_exchange.h"

#include "ops/take_parts.h"
#include "ops/ulysses.h"
#include "tape/tape_ops.h"

Tensor *columns_of(Tape *t, Tensor *x, int64_t first, int64_t n) {
    return tape_view(t, x, first, 3, (int64_t[]){x->dim[0], x->dim[1], n}, x->stride);
}

Tensor *as_heads(Tape *t, Tensor *x, int64_t g) {
    const int64_t b = x->dim[1], d = tensor_count(x) / (x->dim[0] * b * g);
    return tape_view(t, x, 0, 5, (int64_t[]){x->dim[0], b, g, 1, d}, (int64_t[]){b * g * d, g * d, d, d, 1});
}

Tensor *as_rows(Tape *t, Tensor *x) {
    const int64_t b = x->dim[1], n = x->dim[2] * x->dim[3] * x->dim[4];
    return tape_view(t, x, 0, 3, (int64_t[]){x->dim[0], b, n}, (int64_t[]){b * n, n, 1});
}

Tensor *heads_at(Tape *t, Tensor *x, int64_t first, int64_t g, int64_t d) {
    return tape_view(t, x, first, 5, (int64_t[]){x->dim[0], x->dim[1], g, 1, d},
                     (int64_t[]){x->stride[0], x->stride[1], d, d, 1});
}

Tensor *exchanged(Tape *t, Tensor *x, Group ranks, int64_t first, int64_t g, int64_t d) {
    return op_seq_to_heads(t, heads_at(t, x, first, g, d), ranks);
}

Tensor *param_share_of(Tape *t, const Param *p, int64_t first, int64_t n) {
    return op_take_parts(t, (Tensor *)&p->value, &(RowRange){first, n}, 1);
}
