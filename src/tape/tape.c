#include "tape/tape.h"

#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "kernels/ops.h"
#include "tape/spmd_infer.h"

typedef struct TensorList {
    Tensor **items;
    size_t n, cap;
} TensorList;

struct Tape {
    const RunContext *context;
    MicrobatchContext microbatch;
    Space *slot, *transient;
    Space *space;       /* where tape_tensor allocates: the slot, an offloaded layer's space, or the
                           transient space inside a block */
    Offload *offload;   /* NULL: nothing is offloaded */
    Arena *arena;       /* Tensor headers and attributes */
    void *output;       /* memory of the stage's output; NULL: the slot */
    bool output_next;   /* the next tensor of the slot is the stage's output */
    TensorList dropped; /* tensors of open blocks, in the transient space */
    Node *nodes;
    size_t n_nodes, cap_nodes;
    bool recording;
    bool trains, playing; /* begun for a backward; inside of it */
    struct {
        Postponed *run; /* NULL: none */
        void *arg;
        Call call;
    } postponed;
    bool postpones; /* the node in progress has postponed its rest */
    Fiber *fiber;   /* NULL: waits without a pause */
    int *uses;      /* for each parameter number: ops whose backward is still to come, for sync_ready */
    int n_uses;
    TapeTrace *trace;
    void *trace_arg;
};

/* The gradient's bytes have another owner (the caller's dy, or the tensor itself): never freed. */
enum { GRAD_BORROWED = 8, OFF_GRID = 16 };

void tape_grad_off_grid(Tensor *x) { x->flags |= OFF_GRID; }
bool tape_grad_is_off_grid(const Tensor *x) { return x->flags & OFF_GRID; }

static void push(TensorList *l, Tensor *x) {
    if (l->n == l->cap) {
        l->cap = l->cap ? 2 * l->cap : 64;
        l->items = mem_grow(l->items, l->cap, sizeof *l->items);
    }
    l->items[l->n++] = x;
}

Tape *tape_new(const RunContext *context, Space *slot, Space *transient) {
    Tape *t = mem_zero(1, sizeof *t);
    t->context = context;
    t->slot = t->space = slot;
    t->transient = transient;
    t->arena = arena_new();
    return t;
}

void tape_free(Tape *t) {
    if (!t) return;
    arena_free(t->arena);
    free(t->nodes);
    free(t->uses);
    free(t->dropped.items);
    free(t);
}

const RunContext *tape_context(const Tape *t) { return t->context; }

bool tape_is_recording(const Tape *t) { return t->recording; }

bool tape_in_backward(const Tape *t) { return t->playing; }

const MicrobatchContext *tape_microbatch(const Tape *t) { return &t->microbatch; }

void tape_begin(Tape *t, const MicrobatchContext *microbatch) {
    tape_end(t);
    t->microbatch = *microbatch;
    t->recording = t->trains = microbatch->recording;
}

void tape_end(Tape *t) {
    if (t->offload) offload_begin(t->offload);
    space_reset(t->slot);
    space_reset(t->transient);
    arena_reset(t->arena);
    t->space = t->slot;
    t->n_nodes = t->dropped.n = 0;
    t->recording = t->trains = t->output_next = false;
    t->output = NULL;
    for (int i = 0; i < t->n_uses; i++) t->uses[i] = 0;
}

void tape_pauses(Tape *t, Fiber *f) { t->fiber = f; }

void tape_transient_to(Tape *t, Space *transient) { t->transient = transient; }

void *tape_alloc(Tape *t, size_t bytes) { return arena_alloc(t->arena, bytes); }

void tape_trace(Tape *t, TapeTrace *trace, void *arg) {
    t->trace = trace;
    t->trace_arg = arg;
}

/* ---- tensors ---- */

static Tensor *header(Tape *t, Tensor value) {
    Tensor *x = arena_alloc(t->arena, sizeof *x);
    *x = value;
    return x;
}

static Tensor *take(Tape *t, Space *space, DType dtype, int ndim, const int64_t *dim) {
    Tensor *x = header(t, tensor_make(NULL, dtype, ndim, dim));
    x->data = space_take(space, tensor_bytes(x));
    return x;
}

static void give(Tape *t, Tensor *x) { space_give(t->transient, x->data, tensor_bytes(x)); }

static void give_back_to(Tape *t, TensorList *l, size_t mark) {
    while (l->n > mark) give(t, l->items[--l->n]);
}

void tape_output_to(Tape *t, void *memory) { t->output = memory; }

void tape_output_next(Tape *t) { t->output_next = t->output; }

/* A tensor of the forward in progress. */
static Tensor *take_kept(Tape *t, DType dtype, int ndim, const int64_t *dim) {
    if (!t->output_next || t->space != t->slot) return take(t, t->space, dtype, ndim, dim);
    t->output_next = false;
    return header(t, tensor_make(t->output, dtype, ndim, dim));
}

Tensor *tape_tensor(Tape *t, DType dtype, int ndim, const int64_t *dim) {
    Tensor *x = take_kept(t, dtype, ndim, dim);
    if (t->space == t->transient) push(&t->dropped, x);
    return x;
}

Tensor *tape_view(Tape *t, Tensor *base, int64_t offset, int ndim, const int64_t *dim,
                  const int64_t *stride) {
    Tensor v = tensor_make(tensor_at(base, offset), (DType)base->dtype, ndim, dim);
    memcpy(v.stride, stride, (size_t)ndim * sizeof *stride);
    v.flags = base->flags & TENSOR_NEEDS_GRAD;
    v.base = base;
    v.spmd = base->spmd;
    if (t->recording)
        base->refs++; /* of a tensor that is no gradient: views whose gradient is still to come */
    return header(t, v);
}

Tensor *tape_input(Tape *t, void *data, DType dtype, int ndim, const int64_t *dim, SpmdType type) {
    Tensor *x = data ? header(t, tensor_make(data, dtype, ndim, dim)) : take(t, t->slot, dtype, ndim, dim);
    x->flags = TENSOR_NEEDS_GRAD;
    x->spmd = type;
    return x;
}

Tensor *tape_scratch(Tape *t, DType dtype, int ndim, const int64_t *dim) {
    return take(t, t->transient, dtype, ndim, dim);
}

void tape_drop(Tape *t, Tensor *x) { give(t, x); }

Tensor *tape_alias(Tape *t, const Tensor *x) {
    Tensor *y = header(t, *x);
    y->flags &= TENSOR_NEEDS_GRAD;
    y->grad = y->base = NULL;
    y->refs = 0;
    return y;
}

/* ---- gradients ---- */

void tape_grad_drop(Tape *t, Tensor *g) {
    if (!--g->refs && !(g->flags & GRAD_BORROWED)) give(t, g);
}

static void grad_release(Tape *t, Tensor *x) {
    Tensor *g = x->grad;
    x->grad = NULL;
    if (g) tape_grad_drop(t, g);
}

Tensor *tape_grad_keep(Tape *t, Tensor *y) {
    Tensor *g = tape_grad(t, y);
    g->refs++;
    return g;
}

void tape_seed(Tape *t, Tensor *y, double dy) {
    const FillAttr fill = {dy};
    if (!t->recording || !(y->flags & TENSOR_NEEDS_GRAD)) return;
    CHECK(!y->grad && !y->base, "an auxiliary loss is a whole tensor");
    Tensor *g = tape_tensor(t, (DType)y->dtype, y->ndim, y->dim);
    tape_call(t, &OPS[OP_fill], (Call){.out = {g}, .attr = &fill});
    g->flags = GRAD_BORROWED;
    g->refs = 1;
    y->grad = g;
}

static Tensor *grad_new(Tape *t, Tensor *x) {
    x->grad = take(t, t->transient, (DType)x->dtype, x->ndim, x->dim);
    x->grad->refs = 1;
    x->grad->spmd = spmd_dual_type(x->spmd);
    x->grad->flags = x->flags & OFF_GRID;
    return x->grad;
}

Tensor *tape_grad(Tape *t, Tensor *y) {
    (void)t;
    CHECK(y->grad, "no gradient has arrived at this output");
    CHECK(y->refs == 0, "%d views of this output have had no gradient", y->refs);
    return y->grad;
}

static Tensor *view_grad(Tape *t, Tensor *x) {
    bool first = !x->grad;
    if (first) {
        Tensor *whole = x->base->grad ? x->base->grad : grad_new(t, x->base);
        Tensor *g = header(t, *x);
        g->data = (char *)whole->data + ((char *)x->data - (char *)x->base->data);
        g->base = NULL;
        g->spmd = whole->spmd;
        x->grad = g;
        x->base->refs--;
    }
    Tensor *out = header(t, *x->grad);
    out->flags = first ? 0 : TENSOR_ACCUM;
    return out;
}

static bool is_parameter(const Tensor *x) { return x && x->grad && x->grad->flags & TENSOR_MAIN_GRAD; }

/* Finishes a postponed gradient of another bucket, so that its sum can start (param/sync.h). */
static void end_bucket(Tape *t, const Param *next) {
    for (int i = 0; t->postponed.run && i < CALL_IN; i++) {
        const Tensor *x = t->postponed.call.in[i];
        if (is_parameter(x) && param_of(x)->bucket != next->bucket) tape_run_postponed(t);
    }
}

/* The first gradient of a step, or in ZeRO-2 and ZeRO-3 of a sweep, is written. Later ones are added. */
static Tensor *main_grad(Tape *t, Tensor *x) {
    if (t->context->sync) {
        end_bucket(t, param_of(x));
        sync_grad(t->context->sync, param_of(x));
    }
    if (!grad_is_unwritten(x->grad)) return x->grad;
    Tensor *first = header(t, *x->grad);
    x->grad->flags |= TENSOR_ACCUM;
    return first;
}

Tensor *tape_grad_out(Tape *t, Tensor *x, Need need) {
    if (!(x->flags & TENSOR_NEEDS_GRAD)) return NULL;
    if (is_parameter(x)) return need & NEED_DW ? main_grad(t, x) : NULL;
    if (!(need & NEED_DX)) return NULL;
    if (x->base) return view_grad(t, x);
    bool first = !x->grad;
    Tensor *shared = x->grad;
    if (first || shared->refs > 1) {
        Tensor *own = grad_new(t, x);
        if (shared) {
            shared->refs--;
            tape_call(t, &OPS[OP_copy], (Call){.in = {shared}, .out = {own}});
        }
    }
    Tensor *out = header(t, *x->grad);
    out->flags = (x->grad->flags & OFF_GRID) | (first ? 0 : TENSOR_ACCUM);
    return out;
}

Tensor *tape_grad_sum_begin(Tape *t, const Tensor *x, Tensor *dx, bool apart) {
    if (!apart) return dx;
    Tensor *sum = tape_scratch(t, (DType)x->dtype, x->ndim, x->dim);
    sum->spmd = dx->spmd;
    return sum;
}

void tape_grad_sum_end(Tape *t, Tensor *sum, Tensor *dx) {
    if (sum == dx) return;
    tape_call(t, &OPS[OP_copy], (Call){.in = {sum}, .out = {dx}});
    tape_drop(t, sum);
}

void tape_grad_share(Tape *t, Tensor *x, Tensor *g, Need need) {
    bool plain = x->flags & TENSOR_NEEDS_GRAD && !x->base && !x->grad;
    if (plain && need & NEED_DX) {
        x->grad = g;
        g->refs++;
        return;
    }
    Tensor *out = tape_grad_out(t, x, need);
    if (out) tape_call(t, &OPS[OP_copy], (Call){.in = {g}, .out = {out}});
}

Tensor *tape_grad_in_place(Tape *t, Tensor *x, Need need) {
    if (!(x->flags & TENSOR_NEEDS_GRAD) || !(need & NEED_DX)) return NULL;
    CHECK(!x->grad && !x->base, "only the sole gradient of a whole tensor can take the tensor's own memory");
    x->grad = header(t, tensor_make(x->data, (DType)x->dtype, x->ndim, x->dim));
    x->grad->refs = 1;
    x->grad->spmd = spmd_dual_type(x->spmd);
    x->grad->flags = GRAD_BORROWED;
    return header(t, *x->grad);
}

/* ---- running and recording ---- */

/* Partial sums stay off the grid until they are summed, and so do main gradients, which are sums over
 * microbatches. */
static void to_grid(Tape *t, Tensor *y) {
    if (!y || !dtype_is_float((DType)y->dtype) || y->flags & (TENSOR_MAIN_GRAD | OFF_GRID) ||
        spmd_axes(y->spmd, SPMD_P))
        return;
    call_run(&OPS[OP_snap],
             &(Call){.out = {y}, .attr = &(SnapAttr){EXACT_GRID_BITS}, .device = t->context->device});
}

/* Common work after an op has run. */
static void ran(Tape *t, const OpDef *op, const Call *call) {
    for (int i = 0; t->context->exact && i < CALL_OUT; i++) to_grid(t, call->out[i]);
    if (t->trace) t->trace(t->trace_arg, op, call);
}

/* Values of parameters may be on other ranks. */
static void use_parameters(Tape *t, const Call *call) {
    Param *used[CALL_IN];
    int n = 0;
    for (int i = 0; i < CALL_IN; i++)
        if (is_parameter(call->in[i])) used[n++] = param_of(call->in[i]);
    if (n) sync_use(t->context->sync, used, n);
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

int tape_axis(const Tape *t, Axis axis) {
    return t->context->layout ? t->context->layout->mesh.size[axis] : 1;
}

Group tape_group(const Tape *t, unsigned mask) { return mesh_group(&t->context->layout->mesh, mask); }

SequenceSlice tape_slice(const Tape *t, const Tensor *x, int64_t *total) {
    SequenceSlice s = {0};
    *total = x->dim[0];
    if (!t->context->layout) return s;
    const Mesh *m = &t->context->layout->mesh;
    if (spmd_on(x->spmd, AXIS_TP) == SPMD_V) {
        s.first = m->coordinate[AXIS_TP] * x->dim[0];
        *total *= m->size[AXIS_TP];
    }
    const int n = m->size[AXIS_CP], r = m->coordinate[AXIS_CP];
    const int64_t first = s.first;
    *total *= n;
    s = slice_zigzag(*total, n, r);
    s.first = first;
    return s;
}

/* An observer reads results when a node is done. */
bool tape_overlaps(const Tape *t, Axis axis) {
    return !(t->context->at_once & 1u << axis) && !t->context->probe;
}

TapeComm tape_comm_start(Tape *t, const OpDef *op, CommCall call, Tensor *in, Tensor *out) {
    TapeComm c = {op, in, out, NULL, t->context->at_once & call.group.axes || t->context->probe};
    call.dtype = (DType)(in ? in : out)->dtype;
    if (t->context->device->kind == DEVICE_NULL) {
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

static void append(Tape *t, const OpDef *op, Call call, size_t attr_size, NodeBackward *backward) {
    if (t->n_nodes == t->cap_nodes) {
        t->cap_nodes = t->cap_nodes ? 2 * t->cap_nodes : 256;
        t->nodes = mem_grow(t->nodes, t->cap_nodes, sizeof *t->nodes);
    }
    Node *n = &t->nodes[t->n_nodes++];
    *n = (Node){.op = op, .call = call, .backward = backward};
    if (attr_size) n->call.attr = memcpy(arena_alloc(t->arena, attr_size), call.attr, attr_size);
}

static void pause_in_backward(Tape *t, const Node *n, Need need) {
    (void)n, (void)need;
    if (t->fiber) fiber_pause(t->fiber);
}

void tape_pause_halfway(Tape *t) {
    if (!layout_is_sequence_parallel(t->context->layout)) return;
    if (t->fiber && !t->playing) fiber_pause(t->fiber);
    if (t->recording && t->context->keeps_gathered)
        append(t, NULL, (Call){.attr = NULL}, 0, pause_in_backward);
}

/* An op's use of a parameter is counted when the op runs first, not when a block is recomputed. */
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

/* After the parameter gradients of a node have been computed, or when they never will be. */
static void end_uses(Tape *t, const Call *call) {
    for (int i = 0; i < CALL_IN; i++) {
        if (!is_parameter(call->in[i])) continue;
        Param *p = param_of(call->in[i]);
        if (--t->uses[p->number] == 0) sync_ready(t->context->sync, p);
    }
}

static void probe(Tape *t, TapePoint point, const OpDef *op, const Call *call, Need need) {
    const RunContext *c = t->context;
    if (c->probe && op && c->device->kind != DEVICE_NULL) c->probe(c->probe_arg, t, point, op, call, need);
}

void tape_record(Tape *t, const OpDef *op, Call call, size_t attr_size, NodeBackward *backward) {
    probe(t, TAPE_RAN, op, &call, NEED_ALL);
    bool needs_grad = false;
    for (int i = 0; i < CALL_IN; i++) needs_grad |= call.in[i] && call.in[i]->flags & TENSOR_NEEDS_GRAD;
    if (!needs_grad || !backward) return;
    call.out[0]->flags |= TENSOR_NEEDS_GRAD;
    if (t->context->sync && t->trains && !t->playing) count_uses(t, &call);
    if (t->recording) append(t, op, call, attr_size, backward);
}

void tape_early_grads_begin(Tape *t, const OpDef *op, const Call *call) {
    if (t->recording) probe(t, TAPE_PLAYS, op, call, NEED_DW);
}

void tape_early_grads_end(Tape *t, const OpDef *op, Call call, size_t attr_size, NodeBackward *backward) {
    const size_t n = t->n_nodes;
    tape_record(t, op, call, attr_size, backward);
    if (t->n_nodes == n) return;
    t->nodes[n].ahead = true;
    probe(t, TAPE_PLAYED, op, &call, NEED_DW);
}

void tape_check(Tape *t, const OpDef *op, const Call *call) {
    if (t->context->layout) types_infer(op, call, t->context->layout);
}

void tape_run(Tape *t, const OpDef *op, Call call, size_t attr_size, NodeBackward *backward) {
    tape_check(t, op, &call);
    tape_call(t, op, call);
    if (call.out[0]) tape_record(t, op, call, attr_size, backward);
}

/* ---- backward ---- */

static bool has_parameter(const Node *n) {
    for (int i = 0; i < CALL_IN; i++)
        if (is_parameter(n->call.in[i])) return true;
    return false;
}

void tape_run_postponed(Tape *t) {
    Postponed *run = t->postponed.run;
    if (!run) return;
    t->postponed.run = NULL;
    run(t, t->postponed.arg);
    if (t->context->sync) end_uses(t, &t->postponed.call);
}

void tape_postpone(Tape *t, const Node *n, Postponed *run, const void *arg, size_t bytes) {
    tape_run_postponed(t);
    t->postponed.run = run;
    t->postponed.arg = memcpy(tape_alloc(t, bytes), arg, bytes);
    t->postponed.call = n->call;
    t->postpones = true;
}

static void play_node(Tape *t, size_t i, Need need) {
    Node n = t->nodes[i]; /* a copy: a recompute node appends to the array */
    Tensor *y = n.call.out[0];
    const Need shown = n.ahead ? need & NEED_DX : need;
    if (!y)
        n.backward(t, &n, need);
    else if (y->grad) { /* else no gradient depends on it, or a DX sweep has finished it */
        t->recording = false;
        if (shown) probe(t, TAPE_PLAYS, n.op, &n.call, shown);
        n.backward(t, &n, need);
        if (shown) probe(t, TAPE_PLAYED, n.op, &n.call, shown);
        bool dw_to_come = need == NEED_DX && has_parameter(&n);
        if (!dw_to_come) grad_release(t, y);
    }
    if (t->context->sync && need & NEED_DW && !t->postpones) end_uses(t, &n.call);
    t->postpones = false;
}

static void play(Tape *t, size_t first, Need need) {
    const bool recording = t->recording, playing = t->playing;
    t->playing = true;
    for (size_t i = t->n_nodes; i-- > first;) play_node(t, i, need);
    tape_run_postponed(t);
    t->recording = recording;
    t->playing = playing;
}

void tape_give(Tape *t, Tensor *y, Tensor *dy) {
    CHECK(tensor_same_shape(y, dy), "the gradient's shape differs from the output's");
    Tensor *seed = header(t, *dy);
    seed->flags = GRAD_BORROWED;
    seed->refs = 1; /* the caller's: with a second owner it is never written */
    tape_grad_share(t, y, seed, NEED_DX);
}

void tape_play(Tape *t, Need need) { play(t, 0, need); }

/* ---- blocks ---- */

typedef struct Block {
    BlockFn *fn;
    void *self;
} Block;

/* Runs the block with its tensors in the transient space; the caller frees them. */
static Tensor *run_block(Tape *t, const Block *b, Tensor *x, bool recording) {
    Space *space = t->space;
    bool outer = t->recording;
    t->space = t->transient;
    t->recording = recording;
    Tensor *y = b->fn(t, b->self, x);
    t->space = space;
    t->recording = outer;
    return y;
}

static void block_backward(Tape *t, const Node *n, Need need) {
    if (!(need & NEED_DX)) return; /* a recomputed block computes both kinds of gradients in the DX sweep */
    const Block *b = n->call.attr;
    Tensor *x = n->call.in[0];
    Tensor *inner = tape_alias(t, x);
    size_t first = t->n_nodes, mark = t->dropped.n;
    Tensor *y = run_block(t, b, inner, true);
    tape_grad_share(t, y, tape_grad(t, n->call.out[0]), need);
    play(t, first, NEED_ALL);
    t->n_nodes = first;
    if (inner->grad) {
        tape_grad_share(t, x, inner->grad, need);
        grad_release(t, inner);
    }
    give_back_to(t, &t->dropped, mark);
}

Tensor *tape_block(Tape *t, BlockFn *fn, void *self, Tensor *x) {
    Block b = {fn, self};
    size_t mark = t->dropped.n;
    Tensor *inside = run_block(t, &b, x, false);
    Tensor *y = take_kept(t, (DType)inside->dtype, inside->ndim, inside->dim);
    y->flags = inside->flags & TENSOR_NEEDS_GRAD;
    y->spmd = inside->spmd;
    const Call keep = {.in = {inside}, .out = {y}};
    tape_call(t, &OPS[OP_copy], keep);
    probe(t, TAPE_RAN, &OPS[OP_copy], &keep, NEED_ALL);
    give_back_to(t, &t->dropped, mark);
    if (t->space == t->transient) push(&t->dropped, y);
    if (t->recording && y->flags & TENSOR_NEEDS_GRAD)
        append(t, NULL, (Call){.in = {x}, .out = {y}, .attr = &b}, sizeof b, block_backward);
    return y;
}

/* ---- offloading: nodes that mark where a layer begins and ends ---- */

static int64_t layer_of(const Node *n, Need need) {
    CHECK(need == NEED_ALL, "offloaded activations are there for one sweep, not for several");
    return *(const int64_t *)n->call.attr;
}

static void play_end(Tape *t, const Node *n, Need need) { offload_need(t->offload, layer_of(n, need)); }

static void play_begin(Tape *t, const Node *n, Need need) {
    tape_run_postponed(t);
    offload_finish(t->offload, layer_of(n, need));
}

void tape_offload_to(Tape *t, Offload *o) { t->offload = o; }

void tape_offload_begin(Tape *t, int64_t layer) {
    if (!t->offload) return;
    CHECK(t->space == t->slot, "a layer is offloaded inside of another, or of a block");
    t->space = offload_enter(t->offload, layer);
    if (t->recording) append(t, NULL, (Call){.attr = &layer}, sizeof layer, play_begin);
}

void tape_offload_end(Tape *t, int64_t layer) {
    if (!t->offload) return;
    t->space = t->slot;
    if (!t->recording) return;
    offload_leave(t->offload, layer);
    append(t, NULL, (Call){.attr = &layer}, sizeof layer, play_end);
}
