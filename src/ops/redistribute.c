/* The gradient moves in the opposite direction, from the dual of `to` to the dual of `from`. The table's entry for this
 * pair of types therefore describes how the gradient moves. */
#include "ops/redistribute.h"

#include "base/fault.h"
#include "kernels/attr.h"
#include "kernels/ops.h"
#include "tape/tape_backward.h"
#include "tape/tape_ops.h"

enum { NOT_ALLOWED = -1 };

/* [from][to] */
static const int8_t MOVEMENT[4][4] = {
    [SPMD_I] =
        {[SPMD_I] = NOT_ALLOWED, [SPMD_R] = MOVE_NOTHING, [SPMD_V] = MOVE_SLICE, [SPMD_P] = NOT_ALLOWED},
    [SPMD_R] =
        {[SPMD_I] = MOVE_NOTHING, [SPMD_R] = NOT_ALLOWED, [SPMD_V] = MOVE_SLICE, [SPMD_P] = NOT_ALLOWED},
    [SPMD_V] = {[SPMD_I] = MOVE_GATHER, [SPMD_R] = MOVE_GATHER, [SPMD_V] = NOT_ALLOWED, [SPMD_P] = MOVE_PAD},
    [SPMD_P] = {[SPMD_I] = MOVE_REDUCE,
                [SPMD_R] = MOVE_REDUCE,
                [SPMD_V] = MOVE_REDUCE_SCATTER,
                [SPMD_P] = NOT_ALLOWED},
};

static const OpNumber OP_OF[] = {
    [MOVE_NOTHING] = OP_replicate, [MOVE_REDUCE] = OP_all_reduce,
    [MOVE_GATHER] = OP_all_gather, [MOVE_REDUCE_SCATTER] = OP_reduce_scatter,
    [MOVE_SLICE] = OP_slice,       [MOVE_PAD] = OP_pad,
};

/* A tensor viewed as [outer, ranks, inner], in which each rank has runs of `inner` contiguous elements. */
typedef struct Pieces {
    int64_t outer, inner;
    int ranks;
} Pieces;

static Pieces pieces(const Tensor *whole, int dim, int ranks) {
    Pieces p = {1, 1, ranks};
    for (int i = 0; i < dim; i++) p.outer *= whole->dim[i];
    p.inner = tensor_count(whole) / p.outer / ranks;
    CHECK(whole->dim[dim] % ranks == 0,
          "dimension %d of %lld elements cannot be divided evenly among %d ranks", dim,
          (long long)whole->dim[dim], ranks);
    return p;
}

/* Returns a view of `whole` as [ranks, outer, inner]. If member_major is true, the memory is also in the order
 * [ranks, outer, inner]; otherwise, it is in the order of `whole`. */
static Tensor by_rank(const Tensor *whole, Pieces p, bool member_major) {
    Tensor v = tensor_make(whole->data, (DType)whole->dtype, 3, (int64_t[]){p.ranks, p.outer, p.inner});
    if (!member_major) v.stride[0] = p.inner, v.stride[1] = p.ranks * p.inner;
    v.spmd = whole->spmd;
    return v;
}

static void redistribute_copy(Tape *t, Tensor from, Tensor to) {
    tape_call(t, &OPS[OP_copy], (Call){.in = {&from}, .out = {&to}});
}

/* Returns one rank's piece of `whole`, as [1, outer, inner]. */
static Tensor piece(const Tensor *whole, Pieces p, int rank) {
    Tensor v = by_rank(whole, p, false);
    v.data = tensor_at(&v, rank * p.inner);
    v.dim[0] = 1;
    return v;
}

static Tensor flat_piece(const Tensor *own, Pieces p) {
    Tensor v = tensor_make(own->data, (DType)own->dtype, 3, (int64_t[]){1, p.outer, p.inner});
    v.spmd = own->spmd;
    return v;
}

PendingReshard redistribute_start(Tape *t, Tensor *in, Tensor *out, Axis axis, ReshardKind move, int dim) {
    const Group g = tape_group(t, 1u << axis);
    PendingReshard m = {.out = out, .move = move, .dim = dim, .ranks = g.size};
    const OpDef *op = &OPS[OP_OF[move]];
    if (move == MOVE_REDUCE) {
        m.comm = tape_comm_start(t, op, (CommCall){.kind = COMM_ALL_REDUCE, .group = g}, in, out);
        return m;
    }
    Tensor *whole = move == MOVE_GATHER || move == MOVE_PAD ? out : in;
    const Pieces p = pieces(whole, dim, g.size);
    if (p.outer > 1 && (move == MOVE_GATHER || move == MOVE_REDUCE_SCATTER)) {
        m.packed = tape_scratch(t, (DType)whole->dtype, 3, (int64_t[]){p.ranks, p.outer, p.inner});
        m.packed->spmd = whole->spmd;
    }
    if (move == MOVE_GATHER) {
        m.comm = tape_comm_start(t, op, (CommCall){.kind = COMM_ALL_GATHER, .group = g}, in,
                                 m.packed ? m.packed : out);
    } else if (move == MOVE_REDUCE_SCATTER) {
        if (m.packed) redistribute_copy(t, by_rank(in, p, false), *m.packed);
        m.comm = tape_comm_start(t, op, (CommCall){.kind = COMM_REDUCE_SCATTER, .group = g},
                                 m.packed ? m.packed : in, out);
    } else if (move == MOVE_SLICE) {
        redistribute_copy(t, piece(in, p, g.rank), flat_piece(out, p));
    } else if (move == MOVE_PAD) {
        tape_call(t, &OPS[OP_fill], (Call){.out = {out}, .attr = &(FillAttr){0}});
        redistribute_copy(t, flat_piece(in, p), piece(out, p, g.rank));
    }
    return m;
}

void redistribute_finish(Tape *t, PendingReshard m) {
    if (m.comm.op) tape_comm_finish(t, m.comm);
    if (!m.packed) return;
    if (m.move == MOVE_GATHER)
        redistribute_copy(t, *m.packed, by_rank(m.out, pieces(m.out, m.dim, m.ranks), false));
    tape_drop(t, m.packed);
}

void redistribute_run(Tape *t, Tensor *in, Tensor *out, Axis axis, ReshardKind move, int dim) {
    redistribute_finish(t, redistribute_start(t, in, out, axis, move, dim));
}

void redistribute_grad(Tape *t, Tensor *x, Tensor *g, Axis axis, ReshardKind move, int dim, Need need) {
    if (move == MOVE_NOTHING) {
        tape_grad_share(t, x, g, need);
        return;
    }
    Tensor *dx = tape_grad_out(t, x, need);
    if (!dx) return;
    Tensor *sum = tape_grad_sum_begin(t, x, dx, dx->flags & TENSOR_ACCUM || !tensor_is_contiguous(dx));
    redistribute_run(t, g, sum, axis, move, dim);
    tape_grad_sum_end(t, sum, dx);
}

typedef struct RedistributeAttr {
    Axis axis;
    ReshardKind back;
    int dim;
} RedistributeAttr;

static void redistribute_backward(Tape *t, const Node *n, Need need) {
    const RedistributeAttr *a = n->call.attr;
    redistribute_grad(t, n->call.in[0], tape_grad(t, n->call.out[0]), a->axis, a->back, a->dim, need);
}

Tensor *op_redistribute(Tape *t, Tensor *x, Axis axis, Spmd to, int dim) {
    const int ranks = tape_axis(t, axis);
    if (ranks == 1) return x;
    const Spmd from = spmd_on(x->spmd, axis);
    const int move = MOVEMENT[from][to], back = MOVEMENT[spmd_dual(to)][spmd_dual(from)];
    CHECK(move != NOT_ALLOWED && back != NOT_ALLOWED, "op 'redistribute', axis %s: %c cannot become %c",
          axis_name(axis), spmd_letter(from), spmd_letter(to));
    int64_t dims[TENSOR_DIMS];
    for (int i = 0; i < x->ndim; i++) dims[i] = x->dim[i];
    if (move == MOVE_GATHER) dims[dim] *= ranks;
    if (move == MOVE_REDUCE_SCATTER || move == MOVE_SLICE) dims[dim] /= ranks;
    const RedistributeAttr attr = {axis, (ReshardKind)back, dim};
    Tensor *y;
    if (move == MOVE_NOTHING) {
        y = tape_alias(t, x);
        y->spmd = spmd_with(x->spmd, axis, to);
    } else {
        y = tape_tensor(t, (DType)x->dtype, x->ndim, dims);
        y->spmd = spmd_with(x->spmd, axis, to);
        redistribute_run(t, x, y, axis, (ReshardKind)move, dim);
    }
    tape_record(t, &OPS[OP_OF[move]], (Call){.in = {x}, .out = {y}, .attr = &attr}, sizeof attr,
                redistribute_backward);
    return y;
}

typedef struct TakeAttr {
    int64_t first;
} TakeAttr;

/* Returns the selected columns as a view of x. */
static Tensor taken(const Tensor *x, const Tensor *y, int64_t first) {
    Tensor v = *y;
    v.data = tensor_at(x, first);
    v.stride[0] = x->stride[0], v.stride[1] = x->stride[1], v.stride[2] = v.stride[3] = y->dim[4],
    v.stride[4] = 1;
    v.spmd = x->spmd;
    return v;
}

static void take_backward(Tape *t, const Node *n, Need need) {
    Tensor *x = n->call.in[0], *dy = tape_grad(t, n->call.out[0]), *dx = tape_grad_out(t, x, need);
    if (!dx) return;
    if (!(dx->flags & TENSOR_ACCUM)) tape_call(t, &OPS[OP_fill], (Call){.out = {dx}, .attr = &(FillAttr){0}});
    Tensor part = taken(dx, dy, ((const TakeAttr *)n->call.attr)->first);
    part.flags = TENSOR_ACCUM;
    tape_call(t, &OPS[OP_copy], (Call){.in = {dy}, .out = {&part}});
}

Tensor *op_take_heads(Tape *t, Tensor *x, Axis axis, int64_t first, int64_t heads, int64_t d, Spmd to) {
    CHECK(spmd_on(x->spmd, axis) == SPMD_R, "op 'take_heads', axis %s: x must be R", axis_name(axis));
    Tensor *y = tape_tensor(t, (DType)x->dtype, 5, (int64_t[]){x->dim[0], x->dim[1], 1, heads, d});
    y->spmd = spmd_with(x->spmd, axis, to);
    Tensor part = taken(x, y, first);
    const TakeAttr attr = {first};
    tape_call(t, &OPS[OP_copy], (Call){.in = {&part}, .out = {y}});
    tape_record(t, &OPS[OP_take_heads], (Call){.in = {x}, .out = {y}, .attr = &attr}, sizeof attr,
                take_backward);
    return y;
}
