/* In the backward pass, gradients move in the opposite direction, with `sent` and `received` swapped. */
#include "ops/expert_parallel.h"

#include "base/fault.h"
#include "kernels/ops.h"
#include "ops/gather_tokens.h"
#include "tape/tape_backward.h"
#include "tape/tape_ops.h"

/* ---- views ---- */

enum { DENSE_VIEW = MASK_DENSE & ~(1u << AXIS_PP), EXPERT_VIEW = MASK_EXPERT & ~(1u << AXIS_PP) };

static SpmdType crossed(const Tape *t, const OpDef *op, const Tensor *x, unsigned from) {
    SpmdType type = 0;
    for (int a = 0; a < AXES; a++) {
        if (a == AXIS_PP || tape_axis(t, a) == 1) continue;
        const Spmd s = spmd_on(x->spmd, a), want = from & 1u << a ? SPMD_V : SPMD_I;
        CHECK(s == want,
              "op '%s', axis %s: x has type %c, but must have type %c, so that ranks have different tokens",
              op->name, axis_name(a), spmd_letter(s), spmd_letter(want));
        type = spmd_with(type, a, from & 1u << a ? SPMD_I : SPMD_V);
    }
    return type;
}

static void cross_backward(Tape *t, const Node *n, Need need) {
    tape_grad_share(t, n->call.in[0], tape_grad(t, n->call.out[0]), need);
}

static Tensor *cross(Tape *t, const OpDef *op, Tensor *x, unsigned from) {
    if (!tape_context(t)->layout) return x;
    Tensor *y = tape_alias(t, x);
    y->spmd = crossed(t, op, x, from);
    tape_record(t, op, (Call){.in = {x}, .out = {y}}, 0, cross_backward);
    return y;
}

Tensor *op_to_expert_view(Tape *t, Tensor *x) { return cross(t, &OPS[OP_to_expert_view], x, DENSE_VIEW); }

Tensor *op_to_dense_view(Tape *t, Tensor *x) { return cross(t, &OPS[OP_to_dense_view], x, EXPERT_VIEW); }

/* ---- all-to-all ---- */

/* An all-to-all of rows and, in the backward pass, of the rows' gradients. Two tape nodes share an Exchange.
 * The first node starts the all-to-all in the forward pass, and finishes the gradients' all-to-all in the
 * backward pass. The second node finishes the rows' all-to-all in the forward pass, and starts the gradients'
 * all-to-all in the backward pass. The tape's observers are not called for the first node. */
struct Exchange {
    const OpDef *op;
    Group group;
    const int64_t *out, *in; /* number of rows sent to and received from each rank */
    TapeComm comm;
    Tensor *dy; /* dy must exist until the gradients have been sent */
};

static void exchange_start(Tape *t, Exchange *e, const int64_t *out, const int64_t *in, Tensor *from,
                           Tensor *to) {
    const int64_t width = tensor_width(from);
    const int size = e->group.size;
    int64_t *count = tape_alloc(t, 2 * (size_t)size * sizeof *count), received = 0;
    for (int i = 0; i < size; i++) {
        count[i] = out[i] * width;
        count[size + i] = in[i] * width;
        received += in[i];
    }
    Tensor rest = *to;
    rest.dim[0] -= received;
    rest.data = tensor_at(to, received * width);
    if (rest.dim[0]) tape_call(t, &OPS[OP_fill], (Call){.out = {&rest}, .attr = &(FillAttr){0}});
    e->comm = tape_comm_start(
        t, e->op,
        (CommCall){
            .kind = COMM_ALL_TO_ALL, .group = e->group, .in_counts = count, .out_counts = count + size},
        from, to);
}

static Exchange *exchange_of(const Node *n) { return *(Exchange *const *)n->call.attr; }

static void arrive_backward(Tape *t, const Node *n, Need need) {
    Exchange *e = exchange_of(n);
    Tensor *dx = tape_grad_out(t, n->call.in[0], need);
    if (!dx) return;
    e->dy = tape_grad_keep(t, n->call.out[0]);
    exchange_start(t, e, e->in, e->out, e->dy, dx);
}

static void send_backward(Tape *t, const Node *n, Need need) {
    Exchange *e = exchange_of(n);
    tape_run_postponed(t);
    tape_comm_finish(t, e->comm);
    tape_grad_drop(t, e->dy);
    tape_grad_share(t, n->call.in[0], tape_grad(t, n->call.out[0]), need);
}

static Moving send(Tape *t, Tensor *x, int64_t rows, SpmdType type, Exchange exchange) {
    Exchange *e = tape_alloc(t, sizeof *e);
    *e = exchange;
    const Moving m = {.from = tape_alias(t, x),
                      .y = tape_tensor(t, (DType)x->dtype, 3, (int64_t[]){rows, 1, tensor_width(x)}),
                      .exchange = e};
    m.y->spmd = type;
    exchange_start(t, e, e->out, e->in, x, m.y);
    tape_record(t, NULL, (Call){.in = {x}, .out = {m.from}, .attr = &e}, sizeof e, send_backward);
    return m;
}

Moving op_send_to_experts(Tape *t, Tensor *x, const Arrival *a) {
    const OpDef *op = &OPS[OP_send_to_experts];
    return send(t, x, a->arriving, crossed(t, op, x, DENSE_VIEW),
                (Exchange){op, a->ep, a->sent, a->received, {0}, NULL});
}

Moving op_return_from_experts(Tape *t, Tensor *x, const Arrival *a) {
    const OpDef *op = &OPS[OP_return_from_experts];
    return send(t, x, a->rows, crossed(t, op, x, EXPERT_VIEW),
                (Exchange){op, a->ep, a->received, a->sent, {0}, NULL});
}

Tensor *op_arrive(Tape *t, Moving m) {
    Exchange *e = m.exchange;
    if (!e) return m.y;
    tape_comm_finish(t, e->comm);
    tape_record(t, e->op, (Call){.in = {m.from}, .out = {m.y}, .attr = &e}, sizeof e, arrive_backward);
    return m.y;
}

/* ---- plan ---- */

static int64_t part_of(int64_t rows, int parts, int i) { return rows * (i + 1) / parts - rows * i / parts; }

/* Counts the rows sent to and received from each EP rank. A dry run receives `expected` rows. Without a capacity,
 * the expert-tensor-parallel group will gather the rows that its ranks receive, so a->arriving becomes the largest number
 * of rows in the group. */
static void count_rows(Tape *t, const Tensor *all, int64_t n, int64_t expected, Arrival *a) {
    const Mesh *m = &tape_context(t)->layout->mesh;
    const int etp = m->size[AXIS_ETP], ep = m->size[AXIS_EP], me = m->coordinate[AXIS_EP];
    int64_t *sent = tape_alloc(t, 2 * (size_t)ep * sizeof *sent), *received = sent + ep;
    a->sent = sent, a->received = received;
    if (tape_context(t)->device->kind == DEVICE_NULL) {
        for (int i = 0; i < ep; i++)
            sent[i] = part_of(a->rows, ep, i),
            received[i] = part_of(a->arriving < expected ? a->arriving : expected, ep, i);
        device_wait(tape_context(t)->device); /* as device_view does */
        return;
    }
    /* `all` contains the index of each expert's first row, for each rank. */
    DeviceView view = device_view(tape_context(t)->device, all->data, tensor_bytes(all), VIEW_READ);
    const int64_t *begin = view.data, width = all->dim[1],
                  *own = begin + (m->coordinate[AXIS_ETP] + etp * me) * width;
    int64_t most = 0;
    for (int part = 0; part < etp; part++) {
        int64_t sum = 0;
        for (int i = 0; i < ep; i++) {
            const int64_t *from = begin + (part + etp * i) * width, rows = from[(me + 1) * n] - from[me * n];
            if (part == m->coordinate[AXIS_ETP]) received[i] = rows;
            sum += rows;
        }
        if (sum > most) most = sum;
    }
    for (int i = 0; i < ep; i++) sent[i] = own[(i + 1) * n] - own[i * n];
    device_view_end(&view);
    if (!a->arriving) a->arriving = most;
}

/* Gathers the experts' row offsets from all ranks along the axes. */
static Tensor *gather_offsets(Tape *t, const Dispatch *d, unsigned axes) {
    const Group g = tape_group(t, axes);
    Tensor *all = tape_scratch(t, I64, 2, (int64_t[]){g.size, d->offset->dim[0]});
    tape_comm(t, &OPS[OP_gather_offsets], (CommCall){.kind = COMM_ALL_GATHER, .group = g}, d->offset, all);
    return all;
}

/* Plans how to group the gathered rows by expert. `rows` is the number of rows from each expert-tensor-parallel
 * rank. Frees `offset`. */
static Dispatch sort_gathered(Tape *t, Tensor *offset, int64_t rows, ArrivalAttr a, DispatchAttr room) {
    a.etp = tape_axis(t, AXIS_ETP);
    Tensor *expert = tape_tensor(t, I64, 3, (int64_t[]){a.etp * rows, 1, 1});
    tape_call(t, &OPS[OP_arrival], (Call){.in = {offset}, .out = {expert}, .attr = &a});
    tape_drop(t, offset);
    for (int i = AXIS_ETP; i <= AXIS_EDP; i++)
        if (tape_axis(t, i) > 1) expert->spmd = spmd_with(expert->spmd, i, i == AXIS_ETP ? SPMD_R : SPMD_V);
    room.local = true, room.first = a.first;
    return op_dispatch(t, &(Routing){.expert = expert}, a.experts, room);
}

Dispatch op_plan_gathered(Tape *t, const Dispatch *own, DispatchAttr room) {
    return sort_gathered(t, gather_offsets(t, own, 1u << AXIS_ETP), own->copy->dim[0],
                         (ArrivalAttr){.experts = own->offset->dim[0] - 1}, room);
}

Arrival op_plan_arrival(Tape *t, const Dispatch *from, int64_t experts, DispatchAttr room) {
    Arrival a = {.ep = tape_group(t, 1u << AXIS_EP), .rows = from->copy->dim[0]};
    const int64_t limit = experts * room.capacity, all = a.ep.size * a.rows,
                  expected = dispatch_expected(t, a.rows, from->row, a.ep.size, experts);
    if (limit) a.arriving = limit < all ? limit : all;
    if (!limit && tape_context(t)->device->kind == DEVICE_NULL) a.arriving = expected;
    Tensor *offset = gather_offsets(t, from, 1u << AXIS_ETP | 1u << AXIS_EP);
    count_rows(t, offset, experts, expected, &a);
    const ArrivalAttr mine = {.first = a.ep.rank * experts, .experts = experts};
    a.sort = sort_gathered(t, offset, a.arriving, mine, room);
    return a;
}

/* ---- capacity ---- */

Routing op_drop(Tape *t, const Routing *r, int64_t experts, DispatchAttr attr) {
    const Routing whole = {tokens_whole(t, r->probs), tokens_whole(t, r->expert)};
    const Dispatch d = op_dispatch(t, &whole, experts, attr);
    Routing kept = {r->probs, tape_tensor(t, I64, 3, r->expert->dim)};
    kept.expert->spmd = r->expert->spmd;
    Tensor *row = tokens_own(t, d.row, r->expert);
    tokens_check_same(t, "drop", row, r->expert);
    tape_call(t, &OPS[OP_drop], (Call){.in = {r->expert, row}, .out = {kept.expert}});
    return kept;
}
