#include "tape/tape_ops.h"

#include <string.h>

#include "base/fault.h"
#include "kernels/ops.h"
#include "tape/spmd_infer.h"
#include "tape/tape_state.h"

/* Rounds y to the exact lane's grid, unless y is a partial sum, which must be reduced first, or a main
 * gradient, which is a sum over microbatches. */
static void to_grid(Tape *t, Tensor *y) {
    if (!y || !dtype_is_float((DType)y->dtype) || y->flags & (TENSOR_MAIN_GRAD | OFF_GRID) ||
        spmd_axes(y->spmd, SPMD_P))
        return;
    call_run(&OPS[OP_snap],
             &(Call){.out = {y}, .attr = &(SnapAttr){EXACT_GRID_BITS}, .device = t->context->device});
}

/* In the exact lane, rounds the outputs of the op. Then calls the trace. This function must be called after
 * every op. */
static void ran(Tape *t, const OpDef *op, const Call *call) {
    for (int i = 0; t->context->exact && i < CALL_OUT; i++) to_grid(t, call->out[i]);
    if (t->trace) t->trace(t->trace_arg, op, call);
}

/* Gathers the values of the op's parameters from the ranks that hold them. Detached parameters are updated to
 * point to the new memory of their values. */
static void use_parameters(Tape *t, const Call *call) {
    Param *used[CALL_IN];
    int n = 0;
    for (int i = 0; i < CALL_IN; i++)
        if (is_parameter(call->in[i])) used[n++] = param_of(call->in[i]);
    if (!n) return;
    sync_use(t->context->sync, used, n);
    for (int i = 0; i < CALL_IN; i++)
        if (is_parameter(call->in[i])) call->in[i]->data = param_of(call->in[i])->value.data;
}

static bool is_attention(const OpDef *op) {
    return op == &OPS[OP_attention] || op == &OPS[OP_attention_grad] || op == &OPS[OP_attention_unfused] ||
           op == &OPS[OP_attention_unfused_grad];
}

void tape_call(Tape *t, const OpDef *op, Call call) {
    call.device = t->context->device;
    if (t->context->sync) use_parameters(t, &call);
    if (t->context->sync && is_attention(op)) sync_attention(t->context->sync);
    call_run(op, &call);
    ran(t, op, &call);
}

/* If there is a probe, no operation may overlap, because the probe reads results at the end of each node. */
bool tape_overlaps(const Tape *t, Axis axis) {
    return !(t->context->at_once & 1u << axis) && !t->context->probe;
}

TapeComm tape_comm_start(Tape *t, const OpDef *op, CommCall call, Tensor *in, Tensor *out) {
    TapeComm c = {op, in, out, NULL, t->context->at_once & call.group.axes || t->context->probe};
    call.dtype = (DType)(in ? in : out)->dtype;
    if (!comm_starts(t->context->comm, t->context->device)) {
        if (t->context->comm) comm_plan(t->context->comm, &call);
        return c;
    }
    call.device = t->context->device;
    call.in = in ? in->data : NULL;
    call.out = out ? out->data : NULL;
    call.site = op->name;
    if (!call.n) call.n = tensor_count(call.kind == COMM_REDUCE_SCATTER || !in ? out : in);
    c.work = comm_start(t->context->comm, &call);
    if (call.kind != COMM_SEND && call.kind != COMM_RECV) tape_comm_at_once(t, &c);
    return c;
}

void tape_comm_at_once(Tape *t, TapeComm *c) {
    if (!c->at_once || !c->work) return;
    comm_wait(t->context->comm, c->work);
    c->work = NULL;
}

void tape_comm_finish(Tape *t, TapeComm c) {
    const bool is_small = (c.in ? c.in : c.out)->dtype == I64; /* ids and offsets */
    if (t->fiber && !is_small) fiber_pause(t->fiber);
    if (c.work) comm_wait(t->context->comm, c.work);
    ran(t, c.op, &(Call){.in = {c.in}, .out = {c.out}, .device = t->context->device});
}

void tape_comm(Tape *t, const OpDef *op, CommCall call, Tensor *in, Tensor *out) {
    tape_comm_finish(t, tape_comm_start(t, op, call, in, out));
}

/* Counts an op's uses of parameters when the op first runs, but not when its block is recomputed. */
static void count_uses(Tape *t, const Call *call) {
    for (int i = 0; i < CALL_IN; i++) {
        if (!is_parameter(call->in[i])) continue;
        const int number = param_of(call->in[i])->number;
        if (number >= t->n_uses) {
            t->uses = mem_grow(t->uses, (size_t)number + 1, sizeof *t->uses);
            while (t->n_uses <= number) t->uses[t->n_uses++] = 0;
        }
        t->uses[number]++;
    }
}

void tape_probe(Tape *t, TapePoint point, const OpDef *op, const Call *call, Need need) {
    const RunContext *c = t->context;
    if (c->probe && op && c->device->kind != DEVICE_NULL) c->probe(c->probe_arg, t, point, op, call, need);
}

void tape_record(Tape *t, const OpDef *op, Call call, size_t attr_size, NodeBackward *backward) {
    tape_probe(t, TAPE_RAN, op, &call, NEED_ALL);
    bool needs_grad = false;
    for (int i = 0; i < CALL_IN; i++) needs_grad |= call.in[i] && call.in[i]->flags & TENSOR_NEEDS_GRAD;
    if (!needs_grad || !backward) return;
    call.out[0]->flags |= TENSOR_NEEDS_GRAD;
    if (t->context->sync && t->trains && !t->playing) count_uses(t, &call);
    if (t->recording) tape_append(t, op, call, attr_size, backward);
}

void tape_early_grads_begin(Tape *t, const OpDef *op, const Call *call) {
    if (t->recording) tape_probe(t, TAPE_PLAYS, op, call, NEED_DW);
}

void tape_early_grads_end(Tape *t, const OpDef *op, Call call, size_t attr_size, NodeBackward *backward) {
    const size_t n = t->n_nodes;
    tape_record(t, op, call, attr_size, backward);
    if (t->n_nodes == n) return;
    t->nodes[n].ahead = true;
    tape_probe(t, TAPE_PLAYED, op, &call, NEED_DW);
}

void tape_check(Tape *t, const OpDef *op, const Call *call) {
    if (t->context->layout) types_infer(op, call, t->context->layout);
}

void tape_run(Tape *t, const OpDef *op, Call call, size_t attr_size, NodeBackward *backward) {
    tape_check(t, op, &call);
    tape_call(t, op, call);
    if (call.out[0]) tape_record(t, op, call, attr_size, backward);
}

void tape_append(Tape *t, const OpDef *op, Call call, size_t attr_size, NodeBackward *backward) {
    if (t->n_nodes == t->cap_nodes) {
        t->cap_nodes = t->cap_nodes ? 2 * t->cap_nodes : 256;
        t->nodes = mem_grow(t->nodes, t->cap_nodes, sizeof *t->nodes);
    }
    Node *n = &t->nodes[t->n_nodes++];
    *n = (Node){.op = op, .call = call, .backward = backward};
    if (attr_size) n->call.attr = memcpy(arena_alloc(t->arena, attr_size), call.attr, attr_size);
}

void tape_seed(Tape *t, Tensor *y, double dy) {
    const FillAttr fill = {dy};
    if (!t->recording || !(y->flags & TENSOR_NEEDS_GRAD)) return;
    CHECK(!y->grad && !y->base, "an auxiliary loss must not be a view");
    Tensor *g = tape_tensor(t, (DType)y->dtype, y->ndim, y->dim);
    tape_call(t, &OPS[OP_fill], (Call){.out = {g}, .attr = &fill});
    g->flags = GRAD_BORROWED;
    g->refs = 1;
    y->grad = g;
}

void tape_grad_off_grid(Tensor *x) { x->flags |= OFF_GRID; }
bool tape_grad_is_off_grid(const Tensor *x) { return x->flags & OFF_GRID; }
