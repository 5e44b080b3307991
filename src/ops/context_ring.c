/* Keys and values are passed around the ring, and each rank attends to the keys that it holds (Liu et al.,
 * "Ring Attention", 2023; Transformer Engine AttnFuncWithCPAndKVP2P). In step i, rank r holds the keys and
 * values of rank r - i. Partial results are merged by their log-sum-exps, in an order that depends only on the
 * rank. The backward pass sends keys and values around the ring again, followed by their gradients, to which each rank
 * adds its part. The gradients for rank j are therefore summed in the order j, j+1, ..., j-1. For the backward pass,
 * each rank keeps q, k, v, y and lse for its rows.
 *
 * A step computes y, dq, dk and dv in the operands' type, as a fused kernel does. The sums of y, dq, dk and dv
 * over the steps use the arithmetic type. A step's gradients are exact parts of the total gradients, because
 * they are computed from the final y and lse. */
#include "base/fault.h"
#include "kernels/ops.h"
#include "ops/context_attention.h"
#include "ops/ulysses.h"
#include "tape/tape_backward.h"
#include "tape/tape_ops.h"

typedef struct RingAttr {
    AttentionAttr attention; /* must be first, because the kernels read it */
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

/* Returns a tensor that the exact lane does not round to its grid, because the tensor is a partial sum. */
static Tensor *partial(Tape *t, const Tensor *like, DType dtype) {
    Tensor *x = tape_scratch(t, dtype, like->ndim, like->dim);
    x->spmd = spmd_with(like->spmd, AXIS_CP, SPMD_P);
    return x;
}

/* ---- the steps ---- */

typedef enum Sight { SEES_NONE, SEES_SOME, SEES_ALL } Sight;

static int64_t first_seen(const AttentionAttr *a, int64_t query) {
    return attention_begin(a->window_left, a->chunk_size, query, 0);
}

/* Describes the keys in chunk j to which the queries in chunk i attend. */
static Sight sight(const AttentionAttr *a, int i, int j) {
    const int64_t query = a->query.at[i], last_query = query + a->query.chunk - 1, key = a->key.at[j],
                  last_key = key + a->key.chunk - 1;
    const bool ends = a->window_right != WINDOW_OFF;
    if ((ends && last_query + a->window_right < key) || first_seen(a, query) > last_key) return SEES_NONE;
    return (!ends || query + a->window_right >= last_key) && first_seen(a, last_query) <= key ? SEES_ALL
                                                                                              : SEES_SOME;
}

/* Returns whether the call is causal self-attention whose window or chunks exclude no key. */
static bool is_causal(const AttentionAttr *a) {
    const SequenceSlice *q = &a->query, *k = &a->key;
    const bool same = q->chunk == k->chunk && q->at[0] == k->at[0] && q->at[1] == k->at[1],
               begins = first_seen(a, q->at[1] + q->chunk - 1) > k->at[0];
    return same && !begins && a->window_right == 0;
}

RingStep context_ring_step(const AttentionAttr *a, bool by_position) {
    const int64_t rows = a->query.chunk, keys = a->key.chunk;
    RingStep step = {.attr = *a, .queries = 2 * rows, .keys = 2 * keys};
    bool sees[2] = {false, false}, seen[2] = {false, false}, all = true;
    AttentionAttr widest = *a;
    if (by_position && a->chunk_size) /* the positions at which chunks begin depend on the document */
        widest.chunk_size = 0, widest.window_left = a->chunk_size - 1;
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++)
            if (sight(&widest, i, j) != SEES_NONE) sees[i] = seen[j] = true;
    if (!sees[0] && !sees[1]) step.queries = step.keys = 0;
    if (!step.queries || by_position) return step;
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++)
            if (sees[i] && seen[j]) all = all && sight(a, i, j) == SEES_ALL;
    if (!all && !is_causal(a)) return step;
    step.attr.query = step.attr.key = (SequenceSlice){0};
    step.attr.window_left = WINDOW_OFF, step.attr.chunk_size = 0;
    if (all) step.attr.window_right = WINDOW_OFF;
    step.query = sees[0] ? 0 : rows, step.queries = (sees[0] + sees[1]) * rows;
    step.key = seen[0] ? 0 : keys, step.keys = (seen[0] + seen[1]) * keys;
    return step;
}

static RingStep step_of(const Call *c, int step) {
    const RingAttr *a = c->attr;
    const int n = a->group.size;
    AttentionAttr attr = a->attention;
    attr.key = slice_zigzag(c->in[1]->dim[0] * n, n, (a->group.rank + n - step) % n);
    const bool by_position = c->in[3] || c->in[4] || c->in[5] || attr.alibi != 0 || attr.dropout.rate > 0;
    return context_ring_step(&attr, by_position);
}

static Tensor queries_of(const Tensor *x, const RingStep *s) {
    return tensor_slice(x, 0, s->query, s->queries);
}

static Tensor keys_of(Tensor x, const RingStep *s) { return tensor_slice(&x, 0, s->key, s->keys); }

/* Returns [b,g,r,queries] in the memory of a larger lse. */
static Tensor lse_within(const Tensor *memory, const RingStep *s) {
    const int64_t *dim = memory->dim;
    Tensor x =
        tensor_make(memory->data, (DType)memory->dtype, 4, (int64_t[]){dim[0], dim[1], dim[2], s->queries});
    x.spmd = memory->spmd;
    return x;
}

static void copy_to(Tape *t, Tensor *x, Tensor *y) {
    if (y) tape_call(t, &OPS[OP_copy], (Call){.in = {x}, .out = {y}});
}

static void fill(Tape *t, Tensor *x, double value) {
    tape_call(t, &OPS[OP_fill], (Call){.out = {x}, .attr = &(FillAttr){value}});
}

/* ---- forward ---- */

typedef struct Result {
    Tensor *y, *lse;
} Result;

static Result result_new(Tape *t, const Call *c, DType dtype) {
    return (Result){partial(t, c->out[0], dtype), partial(t, c->out[1], (DType)c->out[1]->dtype)};
}

/* Computes attention to the keys that this rank holds, without the sinks. `part` is memory for the result. If
 * `merge` is true, the result is merged into `sum`; otherwise, it is copied to `sum`. */
static void attend(Tape *t, const Call *c, const RingStep *s, const Tensor *held, Result part, Result sum,
                   bool merge) {
    Tensor q = queries_of(c->in[0], s), k = keys_of(pair_keys(held, c), s),
           v = keys_of(pair_values(held, c), s), y = tensor_slice(part.y, 0, 0, s->queries),
           lse = lse_within(part.lse, s), sum_y = queries_of(sum.y, s),
           sum_lse = tensor_slice(sum.lse, 3, s->query, s->queries);
    const Call keys = {.in = {&q, &k, &v, c->in[3], c->in[4], c->in[5], NULL, c->in[7]},
                       .out = {&y, &lse},
                       .attr = &s->attr};
    attention_run(t, &keys, false);
    if (merge)
        tape_call(t, &OPS[OP_attention_merge], (Call){.in = {&y, &lse}, .out = {&sum_y, &sum_lse}});
    else
        copy_to(t, &y, &sum_y), copy_to(t, &lse, &sum_lse);
}

static void forward(Tape *t, const Call *c) {
    const Group *g = &((const RingAttr *)c->attr)->group;
    Tensor *held = own_pair(t, c), *next = pair_new(t, c, (DType)held->dtype, SPMD_V);
    const Result sum = result_new(t, c, (DType)c->out[1]->dtype),
                 part = result_new(t, c, (DType)c->out[0]->dtype);
    bool begun = step_of(c, 0).queries == c->in[0]->dim[0];
    if (!begun) fill(t, sum.y, 0), fill(t, sum.lse, -INFINITY);
    for (int step = 0; step < g->size; step++) {
        const bool last = step + 1 == g->size;
        const RingStep s = step_of(c, step);
        Pass keys;
        if (!last) keys = pass_start(t, &OPS[OP_ring_keys], g, held, next);
        if (s.queries) attend(t, c, &s, held, part, sum, step > 0 || !begun);
        if (!last) pass_finish(t, keys), swap(&held, &next);
    }
    copy_to(t, sum.y, c->out[0]);
    copy_to(t, sum.lse, c->out[1]);
    attention_add_sinks(t, c);
    Tensor *const scratch[] = {held, next, sum.y, sum.lse, part.y, part.lse};
    for (size_t i = 0; i < sizeof scratch / sizeof *scratch; i++) tape_drop(t, scratch[i]);
}

/* ---- backward ---- */

/* Memory for the gradients of a step's rows: dq is separate, and `pair` contains both dk and dv. dbias is
 * summed over the steps, and is NULL if it is not needed. */
typedef struct Parts {
    Tensor *dq, *pair, *dbias;
} Parts;

static Tensor part_keys(const Tensor *pair, const Call *c, const RingStep *s) {
    const Tensor x = pair_keys(pair, c);
    return tensor_slice(&x, 0, 0, s->keys);
}

static Tensor part_values(const Tensor *pair, const Call *c, const RingStep *s) {
    const Tensor x = pair_values(pair, c);
    return tensor_slice(&x, 0, 0, s->keys);
}

static void step_gradients(Tape *t, const Call *c, const RingStep *s, Tensor *dy, const Tensor *held,
                           const Parts *parts) {
    Tensor q = queries_of(c->in[0], s), k = keys_of(pair_keys(held, c), s),
           v = keys_of(pair_values(held, c), s), y = queries_of(c->out[0], s), dy_rows = queries_of(dy, s),
           dq = tensor_slice(parts->dq, 0, 0, s->queries), dk = part_keys(parts->pair, c, s),
           dv = part_values(parts->pair, c, s), lse_rows = tensor_slice(c->out[1], 3, s->query, s->queries);
    Tensor *lse = c->out[1];
    if (s->queries < c->in[0]->dim[0]) { /* the kernels need a contiguous lse */
        lse = tape_scratch(t, (DType)lse->dtype, 4, lse_rows.dim);
        lse->spmd = c->out[1]->spmd;
        copy_to(t, &lse_rows, lse);
    }
    const Call part = {.in = {&q, &k, &v, c->in[3], c->in[4], c->in[5]}, .out = {&y, lse}, .attr = &s->attr};
    attention_gradients(t, &part, false, &dy_rows, (AttentionGrads){&dq, &dk, &dv, parts->dbias, NULL});
    tape_drop_unless(t, lse, c->out[1]);
}

/* Adds the step's part to the sum. If this is the first part, copies the part instead, and zeroes the rows that
 * the part does not cover. */
static void add_queries(Tape *t, const RingStep *s, const Parts *parts, Tensor *sum, bool first) {
    const bool whole = s->queries == sum->dim[0];
    if (first && !whole) fill(t, sum, 0);
    if (!s->queries) return;
    Tensor dq = tensor_slice(parts->dq, 0, 0, s->queries), rows = queries_of(sum, s);
    rows.flags = first && whole ? 0 : TENSOR_ACCUM;
    copy_to(t, &dq, &rows);
}

static void add_keys(Tape *t, const Call *c, const RingStep *s, const Parts *parts, Tensor *sum, bool first) {
    const bool whole = s->keys == c->in[1]->dim[0];
    if (first && !whole) fill(t, sum, 0);
    if (!s->keys) return;
    Tensor dk = part_keys(parts->pair, c, s), dv = part_values(parts->pair, c, s),
           k_rows = keys_of(pair_keys(sum, c), s), v_rows = keys_of(pair_values(sum, c), s);
    k_rows.flags = v_rows.flags = first && whole ? 0 : TENSOR_ACCUM;
    copy_to(t, &dk, &k_rows), copy_to(t, &dv, &v_rows);
}

static Parts parts_new(Tape *t, const Call *c, const AttentionGrads *grads) {
    const Parts p = {partial(t, c->in[0], (DType)c->in[0]->dtype),
                     pair_new(t, c, (DType)c->in[1]->dtype, SPMD_P),
                     grads->bias ? partial(t, grads->bias, (DType)c->out[1]->dtype) : NULL};
    if (!p.dbias) return p;
    fill(t, p.dbias, 0);
    p.dbias->flags = TENSOR_ACCUM;
    return p;
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
    Tensor *sent = pair_new(t, c, precise, SPMD_P), *came = pair_new(t, c, precise, SPMD_P),
           *dq = partial(t, c->in[0], precise);
    const Parts parts = parts_new(t, c, &grads);
    for (int step = 0; step < g->size; step++) {
        const bool last = step + 1 == g->size;
        const RingStep s = step_of(c, step);
        Pass keys, gradients;
        if (!last) keys = pass_start(t, &OPS[OP_ring_keys], g, held, next);
        if (step) gradients = pass_start(t, &OPS[OP_ring_gradients], g, sent, came);
        if (s.queries) step_gradients(t, c, &s, tape_grad(t, c->out[0]), held, &parts);
        add_queries(t, &s, &parts, dq, !step);
        if (step) pass_finish(t, gradients);
        add_keys(t, c, &s, &parts, came, !step);
        if (!last) pass_finish(t, keys), swap(&held, &next);
        swap(&came, &sent);
    }
    pass_finish(t, pass_start(t, &OPS[OP_ring_gradients], g, sent, came));
    Tensor dk = pair_keys(came, c), dv = pair_values(came, c);
    copy_to(t, dq, grads.q), copy_to(t, &dk, grads.k), copy_to(t, &dv, grads.v);
    copy_to(t, parts.dbias, grads.bias);
    Tensor *const scratch[] = {held, next, sent, came, dq, parts.dq, parts.pair, parts.dbias};
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
