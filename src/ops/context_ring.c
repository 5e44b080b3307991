/* Keys and values go round the ring while each rank attends to those that it holds (Liu et al., "Ring
 * Attention", 2023; Transformer Engine AttnFuncWithCPAndKVP2P). In step i rank r holds those of rank r - i.
 * Partial results are merged by their log-sums; the order depends on the rank only. The backward sends keys
 * and values round again, followed by their gradients, to which each rank adds: those of rank j are the sum
 * over j, j+1, ..., j-1. q, k, v, y and lse of this rank's rows are kept for the backward. Partial results
 * are in the arithmetic's type. */
#include "base/fault.h"
#include "kernels/ops.h"
#include "ops/context_attention.h"
#include "ops/ulysses.h"

typedef struct RingAttr {
    AttentionAttr attention; /* first: the kernels read it */
    Group group;
} RingAttr;

typedef struct Pass {
    TapeComm send, receive;
} Pass;

static Pass pass_start(Tape *t, const OpDef *op, const Group *g, Tensor *out, Tensor *in) {
    const int n = g->size;
    const CommCall send = {.kind = COMM_SEND, .group = *g, .peer = (g->rank + 1) % n},
                   receive = {.kind = COMM_RECV, .group = *g, .peer = (g->rank + n - 1) % n};
    Pass p = {tape_comm_start(t, op, send, out, NULL), tape_comm_start(t, op, receive, NULL, in)};
    tape_comm_at_once(t, &p.send);
    tape_comm_at_once(t, &p.receive);
    return p;
}

static void pass_finish(Tape *t, Pass p) {
    tape_comm_finish(t, p.send);
    tape_comm_finish(t, p.receive);
}

static void swap(Tensor **a, Tensor **b) {
    Tensor *x = *a;
    *a = *b, *b = x;
}

/* Keys and values, or their gradients, in one message. */
static Tensor *pair_new(Tape *t, const Call *c, DType dtype, Spmd cp) {
    const Tensor *k = c->in[1], *v = c->in[2];
    return exchange_message(t, dtype, 1, tensor_count(k) + tensor_count(v), spmd_with(k->spmd, AXIS_CP, cp));
}

static Tensor pair_keys(const Tensor *pair, const Call *c) { return exchange_part(pair, 0, 0, c->in[1]); }

static Tensor pair_values(const Tensor *pair, const Call *c) {
    return exchange_part(pair, 0, tensor_count(c->in[1]), c->in[2]);
}

static Tensor *own_pair(Tape *t, const Call *c) {
    Tensor *p = pair_new(t, c, (DType)c->in[1]->dtype, SPMD_V);
    exchange_rows(t, c->in[1], p, 0, true);
    exchange_rows(t, c->in[2], p, tensor_count(c->in[1]), true);
    return p;
}

/* A tensor that the exact lane does not round to its grid, because it is not yet a result. */
static Tensor *partial(Tape *t, const Tensor *like, DType dtype) {
    Tensor *x = tape_scratch(t, dtype, like->ndim, like->dim);
    x->spmd = spmd_with(like->spmd, AXIS_CP, SPMD_P);
    return x;
}

static AttentionAttr at_step(const Call *c, int step) {
    const RingAttr *a = c->attr;
    const int n = a->group.size;
    AttentionAttr attr = a->attention;
    attr.key = slice_zigzag(c->in[1]->dim[0] * n, n, (a->group.rank + n - step) % n);
    return attr;
}

/* Whether any query may see any key; else the keys are only passed on. */
static bool sees(const AttentionAttr *a) {
    for (int i = 0; i < 4; i++) {
        const int64_t q = a->query.at[i / 2], k = a->key.at[i % 2];
        if ((a->window_right == WINDOW_OFF || q + a->query.chunk - 1 + a->window_right >= k) &&
            (a->window_left == WINDOW_OFF || q - a->window_left <= k + a->key.chunk - 1))
            return true;
    }
    return false;
}

/* Attention to some keys, without the sinks. */
static Call call_for(const Call *c, Tensor *k, Tensor *v, Tensor *y, Tensor *lse, const AttentionAttr *attr) {
    return (Call){.in = {c->in[0], k, v, c->in[3], c->in[4], c->in[5]}, .out = {y, lse}, .attr = attr};
}

static void copy_to(Tape *t, Tensor *x, Tensor *y) {
    if (y) tape_call(t, &OPS[OP_copy], (Call){.in = {x}, .out = {y}});
}

static void forward(Tape *t, const Call *c) {
    const Group *g = &((const RingAttr *)c->attr)->group;
    const DType precise = (DType)c->out[1]->dtype;
    Tensor *held = own_pair(t, c), *next = pair_new(t, c, (DType)held->dtype, SPMD_V);
    Tensor *y = partial(t, c->out[0], precise), *lse = partial(t, c->out[1], precise);
    Tensor *part_y = partial(t, y, precise), *part_lse = partial(t, lse, precise);
    for (int step = 0; step < g->size; step++) {
        const bool last = step + 1 == g->size;
        const AttentionAttr attr = at_step(c, step);
        Tensor k = pair_keys(held, c), v = pair_values(held, c);
        Pass keys;
        if (!last) keys = pass_start(t, &OPS[OP_ring_keys], g, held, next);
        if (sees(&attr)) { /* in the first step a rank sees some of its keys */
            Call part = call_for(c, &k, &v, y, lse, &attr);
            if (step) part.out[0] = part_y, part.out[1] = part_lse;
            tape_call(t, &OPS[OP_attention], part);
            if (step)
                tape_call(t, &OPS[OP_attention_merge], (Call){.in = {part_y, part_lse}, .out = {y, lse}});
        }
        if (!last) pass_finish(t, keys), swap(&held, &next);
    }
    copy_to(t, y, c->out[0]);
    copy_to(t, lse, c->out[1]);
    attention_add_sinks(t, c);
    Tensor *const scratch[] = {held, next, y, lse, part_y, part_lse};
    for (size_t i = 0; i < sizeof scratch / sizeof *scratch; i++) tape_drop(t, scratch[i]);
}

/* Computes the gradient of the held keys and values for this rank's queries into `own`; dq and dbias (NULL:
 * not needed) are written or added to. */
static void step_gradient(Tape *t, const Call *c, int step, Tensor *dy, const Tensor *held, Tensor *dq,
                          Tensor *dbias, Tensor *own) {
    const AttentionAttr attr = at_step(c, step);
    Tensor k = pair_keys(held, c), v = pair_values(held, c), dk = pair_keys(own, c), dv = pair_values(own, c);
    if (!sees(&attr)) {
        tape_call(t, &OPS[OP_fill], (Call){.out = {own}, .attr = &(FillAttr){0}});
        return;
    }
    const Call part = call_for(c, &k, &v, c->out[0], c->out[1], &attr);
    dq->flags = step ? TENSOR_ACCUM : 0;
    if (dbias) dbias->flags = dq->flags;
    attention_gradients(t, &part, false, dy, (AttentionGrads){.q = dq, .k = &dk, .v = &dv, .bias = dbias});
}

static void context_ring_backward(Tape *t, const Node *n, Need need) {
    const Call *c = &n->call;
    const Group *g = &((const RingAttr *)c->attr)->group;
    const DType precise = (DType)c->out[1]->dtype;
    const AttentionGrads grads = attention_grads_out(t, c, need);
    if (grads.sink)
        attention_gradients(t, c, false, tape_grad(t, c->out[0]), (AttentionGrads){.sink = grads.sink});
    if (!attention_grads_of_scores(&grads)) return;
    Tensor *held = own_pair(t, c), *next = pair_new(t, c, (DType)held->dtype, SPMD_V);
    Tensor *own = pair_new(t, c, precise, SPMD_P), *sent = pair_new(t, c, precise, SPMD_P),
           *came = pair_new(t, c, precise, SPMD_P), *dq = partial(t, c->in[0], precise),
           *dbias = grads.bias ? partial(t, grads.bias, precise) : NULL;
    for (int step = 0; step < g->size; step++) {
        const bool last = step + 1 == g->size;
        Pass keys, gradients;
        if (!last) keys = pass_start(t, &OPS[OP_ring_keys], g, held, next);
        if (step) gradients = pass_start(t, &OPS[OP_ring_gradients], g, sent, came);
        step_gradient(t, c, step, tape_grad(t, c->out[0]), held, dq, dbias, own);
        if (step) {
            Tensor sum = *own;
            sum.flags = TENSOR_ACCUM;
            pass_finish(t, gradients);
            copy_to(t, came, &sum);
        }
        if (!last) pass_finish(t, keys), swap(&held, &next);
        swap(&own, &sent);
    }
    pass_finish(t, pass_start(t, &OPS[OP_ring_gradients], g, sent, came));
    Tensor dk = pair_keys(came, c), dv = pair_values(came, c);
    copy_to(t, dq, grads.q), copy_to(t, &dk, grads.k), copy_to(t, &dv, grads.v);
    copy_to(t, dbias, grads.bias);
    Tensor *const scratch[] = {held, next, own, sent, came, dq, dbias};
    for (size_t i = 0; i < sizeof scratch / sizeof *scratch; i++)
        if (scratch[i]) tape_drop(t, scratch[i]);
}

Tensor *context_ring(Tape *t, const AttentionInputs *x, AttentionAttr attr, Group group) {
    const RingAttr ring = {attr, group};
    Call call = attention_call(x, &ring);
    attention_outputs(t, &call, x->k->dim[0], false);
    tape_check(t, &OPS[OP_attention], &call);
    forward(t, &call);
    tape_record(t, &OPS[OP_attention], call, sizeof ring, context_ring_backward);
    return call.out[0];
}
