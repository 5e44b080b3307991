#include "ops/ulysses.h"

#include "base/fault.h"
#include "kernels/ops.h"
#include "tape/tape_backward.h"
#include "tape/tape_ops.h"

static void move(Tape *t, Tensor a, Tensor b, bool forth) {
    tape_call(t, &OPS[OP_copy], (Call){.in = {forth ? &a : &b}, .out = {forth ? &b : &a}});
}

static void shift(Tensor *x, int64_t elements) { x->data = tensor_at(x, elements); }

Tensor exchange_part(const Tensor *packed, int member, int64_t at, const Tensor *like) {
    Tensor v = tensor_make(packed->data, (DType)packed->dtype, like->ndim, like->dim);
    v.spmd = packed->spmd;
    shift(&v, member * packed->dim[1] + at);
    return v;
}

/* Returns a view of x's memory in a different shape. The view has contiguous strides, which the caller must correct. */
static Tensor reshaped(const Tensor *x, int ndim, const int64_t *dim) {
    Tensor v = tensor_make(x->data, (DType)x->dtype, ndim, dim);
    v.spmd = x->spmd, v.flags = x->flags;
    return v;
}

/* Returns the first (or second) chunk of every member's slice, as [members,chunk,row]. The rows of x must be
 * contiguous. The second chunks are in reverse order. */
static Tensor chunks_of(const Tensor *x, int members, int which) {
    const int64_t chunk = x->dim[0] / (2 * members), first = which ? (2 * members - 1) * chunk : 0;
    Tensor v = reshaped(x, 3, (int64_t[]){members, chunk, tensor_count(x) / x->dim[0]});
    v.stride[0] = (which ? -chunk : chunk) * x->stride[0], v.stride[1] = x->stride[0];
    shift(&v, first * x->stride[0]);
    return v;
}

static bool has_whole_rows(const Tensor *x) {
    int64_t row = 1;
    for (int i = x->ndim - 1; i > 0; row *= x->dim[i--])
        if (x->stride[i] != row && x->dim[i] > 1) return false;
    return true;
}

void exchange_rows(Tape *t, Tensor *x, Tensor *packed, int64_t at, bool pack) {
    const int n = (int)packed->dim[0];
    if (n > 1 && has_whole_rows(x)) {
        for (int which = 0; which < 2; which++) {
            const Tensor chunks = chunks_of(x, n, which);
            Tensor parts = exchange_part(packed, 0, at + which * tensor_count(&chunks) / n, &chunks);
            parts.stride[0] = packed->dim[1];
            move(t, chunks, parts, pack);
        }
        return;
    }
    for (int m = 0; m < n; m++) {
        const int64_t s = x->dim[0] / n;
        const SequenceSlice slice = slice_zigzag(x->dim[0], n, m);
        Tensor slice_like = tensor_slice(x, 0, 0, s), own = exchange_part(packed, m, at, &slice_like);
        for (int64_t row = 0, run; row < s; row += run) {
            run = slice_run(&slice, row, s - row);
            move(t, tensor_slice(x, 0, slice_position(&slice, row), run), tensor_slice(&own, 0, row, run),
                 pack);
        }
    }
}

/* Returns member m's heads from x [s,b,g,r,d]. */
static Tensor heads_of(const Tensor *x, int members, int m) {
    const int64_t g = x->dim[2], r = x->dim[3];
    Tensor v = *x;
    if (g >= members) {
        v.dim[2] = g / members;
        shift(&v, m * v.dim[2] * x->stride[2]);
        return v;
    }
    const int64_t sharing = members / g;
    v.dim[2] = 1;
    if (r > 1) v.dim[3] = r / sharing;
    shift(&v, m / sharing * x->stride[2] + (r > 1 ? m % sharing * v.dim[3] * x->stride[3] : 0));
    return v;
}

static bool is_shared(const Tensor *x, int members) { return x->dim[3] == 1 && x->dim[2] < members; }

/* Sets *out to every member's heads, as [n,s*b,g/n,r*d]. Returns false if the strides of x do not allow such a
 * view. */
static bool heads_of_all(const Tensor *x, int n, Tensor *out) {
    const int64_t s = x->dim[0], b = x->dim[1], g = x->dim[2], r = x->dim[3], d = x->dim[4];
    if (g % n || (b > 1 && s > 1 && x->stride[0] != b * x->stride[1]) || (r > 1 && x->stride[3] != d))
        return false;
    *out = reshaped(x, 4, (int64_t[]){n, s * b, g / n, r * d});
    out->stride[0] = g / n * x->stride[2], out->stride[1] = b > 1 ? x->stride[1] : x->stride[0];
    out->stride[2] = x->stride[2];
    return true;
}

/* The backward pass sums the gradients of shared heads. */
static void exchange_heads(Tape *t, Tensor *x, Tensor *packed, bool pack) {
    const int n = (int)packed->dim[0];
    Tensor all;
    if (heads_of_all(x, n, &all)) {
        move(t, all, exchange_part(packed, 0, 0, &all), pack);
        return;
    }
    for (int m = 0; m < n; m++) {
        Tensor mine = heads_of(x, n, m);
        if (m > 0 && mine.data == heads_of(x, n, m - 1).data) mine.flags |= TENSOR_ACCUM;
        move(t, mine, exchange_part(packed, m, 0, &mine), pack);
    }
}

Tensor *exchange_message(Tape *t, DType dtype, int64_t members, int64_t n, SpmdType type) {
    Tensor *x = tape_scratch(t, dtype, 2, (int64_t[]){members, n});
    x->spmd = type;
    return x;
}

/* Moves data between x_rows (a zigzag slice with all heads) and x_heads (all rows with some heads). The tensors may be
 * partial sums. */
static void exchange(Tape *t, const Group *g, Tensor *x_rows, Tensor *x_heads, bool to_heads) {
    const int64_t each = tensor_count(x_heads) / g->size;
    const SpmdType type = spmd_with(x_rows->spmd, AXIS_CP, SPMD_P);
    const DType dtype = (DType)x_rows->dtype;
    Tensor *by_heads = exchange_message(t, dtype, g->size, each, type),
           *by_rows = exchange_message(t, dtype, g->size, each, type);
    int64_t *count = tape_alloc(t, (size_t)g->size * sizeof *count);
    for (int m = 0; m < g->size; m++) count[m] = each;
    const CommCall call = {
        .kind = COMM_ALL_TO_ALL, .group = *g, .in_counts = count, .out_counts = count, .n = each};
    if (to_heads) {
        exchange_heads(t, x_rows, by_heads, true);
        tape_comm(t, &OPS[OP_seq_to_heads], call, by_heads, by_rows);
        exchange_rows(t, x_heads, by_rows, 0, false);
    } else {
        exchange_rows(t, x_heads, by_rows, 0, true);
        tape_comm(t, &OPS[OP_heads_to_seq], call, by_rows, by_heads);
        exchange_heads(t, x_rows, by_heads, false);
    }
    tape_drop(t, by_heads);
    tape_drop(t, by_rows);
}

static void to_heads_backward(Tape *t, const Node *n, Need need) {
    Tensor *x = n->call.in[0], *dx = tape_grad_out(t, x, need);
    const Group *g = n->call.attr;
    if (!dx) return;
    Tensor *sum = tape_grad_sum_begin(t, x, dx, is_shared(x, g->size));
    if (sum != dx) sum->spmd = spmd_with(dx->spmd, AXIS_CP, SPMD_P);
    exchange(t, g, sum, tape_grad(t, n->call.out[0]), false);
    tape_grad_sum_end(t, sum, dx);
}

static void to_rows_backward(Tape *t, const Node *n, Need need) {
    Tensor *dx = tape_grad_out(t, n->call.in[0], need);
    if (dx) exchange(t, n->call.attr, tape_grad(t, n->call.out[0]), dx, true);
}

Tensor *op_seq_to_heads(Tape *t, Tensor *x, Group g) {
    const Tensor mine = heads_of(x, g.size, g.rank);
    Tensor *y = tape_tensor(t, (DType)x->dtype, 5,
                            (int64_t[]){x->dim[0] * g.size, x->dim[1], mine.dim[2], mine.dim[3], x->dim[4]});
    y->spmd = spmd_with(x->spmd, AXIS_CP, is_shared(x, g.size) ? SPMD_R : SPMD_V);
    /* y is off the grid like x, because the op only moves data */
    if (tape_grad_is_off_grid(x)) tape_grad_off_grid(y);
    exchange(t, &g, x, y, true);
    tape_record(t, &OPS[OP_seq_to_heads], (Call){.in = {x}, .out = {y}, .attr = &g}, sizeof g,
                to_heads_backward);
    return y;
}

Tensor *op_heads_to_seq(Tape *t, Tensor *x, Group group, int64_t g, int64_t r) {
    Tensor *y =
        tape_tensor(t, (DType)x->dtype, 5, (int64_t[]){x->dim[0] / group.size, x->dim[1], g, r, x->dim[4]});
    y->spmd = x->spmd;
    exchange(t, &group, y, x, false);
    tape_record(t, &OPS[OP_heads_to_seq], (Call){.in = {x}, .out = {y}, .attr = &group}, sizeof group,
                to_rows_backward);
    return y;
}

/* Returns a view of [b,s] whose first dimension is the sequence. */
static Tensor by_position(const Tensor *id) {
    Tensor v = tensor_make(id->data, I64, 3, (int64_t[]){id->dim[1], id->dim[0], 1});
    v.stride[0] = 1, v.stride[1] = id->dim[1];
    return v;
}

Tensor *exchange_ids(Tape *t, Tensor *id, Group g) {
    const int64_t b = id->dim[0], s = id->dim[1];
    Tensor *y = tape_tensor(t, I64, 2, (int64_t[]){b, g.size * s});
    Tensor *own = exchange_message(t, I64, 1, s * b, id->spmd),
           *all = exchange_message(t, I64, g.size, s * b, id->spmd);
    Tensor rows = by_position(id), all_rows = by_position(y);
    move(t, rows, exchange_part(own, 0, 0, &rows), true);
    tape_comm(t, &OPS[OP_exchange_ids], (CommCall){.kind = COMM_ALL_GATHER, .group = g}, own, all);
    exchange_rows(t, &all_rows, all, 0, false);
    y->spmd = id->spmd;
    tape_drop(t, own);
    tape_drop(t, all);
    return y;
}
