/* Each rank gathers all keys and values, and computes attention for its queries (Transformer Engine
 * AttnFuncWithCPAndKVAllGather). The gathered keys are sorted by position, as on one rank, so y and dq are bitwise
 * equal to the results on one rank. Each rank keeps only its rows for the backward pass, which gathers keys and values
 * again. A reduce-scatter sums the ranks' gradients. */
#include "kernels/ops.h"
#include "ops/context_attention.h"
#include "ops/ulysses.h"
#include "tape/tape_backward.h"
#include "tape/tape_ops.h"

typedef struct GatherAttr {
    AttentionAttr attention; /* must be first, because the kernels read it */
    Group group;
    bool unfused;
} GatherAttr;

/* Returns a tensor that is large enough for all ranks' rows. x contains this rank's rows. */
static Tensor *whole(Tape *t, const Tensor *x, int ranks, DType dtype, Spmd cp) {
    Tensor *y =
        tape_scratch(t, dtype, 5, (int64_t[]){ranks * x->dim[0], x->dim[1], x->dim[2], x->dim[3], x->dim[4]});
    y->spmd = spmd_with(x->spmd, AXIS_CP, cp);
    return y;
}

typedef struct Whole {
    Tensor *k, *v;
} Whole;

static void whole_drop(Tape *t, Whole w) {
    tape_drop(t, w.k);
    tape_drop(t, w.v);
}

/* Gathers the group's keys and values in one message. */
static Whole gather(Tape *t, Tensor *k, Tensor *v, const Group *g) {
    const int64_t nk = tensor_count(k), n = nk + tensor_count(v);
    const DType dtype = (DType)k->dtype;
    const Whole all = {whole(t, k, g->size, dtype, SPMD_R), whole(t, v, g->size, dtype, SPMD_R)};
    Tensor *own = exchange_message(t, dtype, 1, n, k->spmd),
           *packed = exchange_message(t, dtype, g->size, n, all.k->spmd);
    exchange_rows(t, k, own, 0, true);
    exchange_rows(t, v, own, nk, true);
    tape_comm(t, &OPS[OP_gather_keys], (CommCall){.kind = COMM_ALL_GATHER, .group = *g}, own, packed);
    exchange_rows(t, all.k, packed, 0, false);
    exchange_rows(t, all.v, packed, nk, false);
    tape_drop(t, own);
    tape_drop(t, packed);
    return all;
}

/* Sums the gradients of all keys and values over the ranks. Each rank receives the sums for its own rows. */
static void scatter(Tape *t, Whole d, const Group *g, Tensor *dk, Tensor *dv) {
    const int64_t nk = tensor_count(d.k) / g->size, n = nk + tensor_count(d.v) / g->size;
    const DType dtype = (DType)d.k->dtype;
    Tensor *packed = exchange_message(t, dtype, g->size, n, d.k->spmd),
           *own = exchange_message(t, dtype, 1, n, d.k->spmd);
    exchange_rows(t, d.k, packed, 0, true);
    exchange_rows(t, d.v, packed, nk, true);
    tape_comm(t, &OPS[OP_scatter_gradients], (CommCall){.kind = COMM_REDUCE_SCATTER, .group = *g}, packed,
              own);
    if (dk) exchange_rows(t, dk, own, 0, false);
    if (dv) exchange_rows(t, dv, own, nk, false);
    tape_drop(t, packed);
    tape_drop(t, own);
}

static void context_gather_backward(Tape *t, const Node *n, Need need) {
    const GatherAttr *a = n->call.attr;
    Tensor *const *in = n->call.in, *dy = tape_grad(t, n->call.out[0]);
    const AttentionGrads own = attention_grads_out(t, &n->call, need);
    if (!attention_grads_of_scores(&own) && !own.sink) return;
    if (!attention_grads_of_scores(&own) && !a->unfused) {
        /* the sinks' gradient does not depend on the keys */
        attention_gradients(t, &n->call, false, dy, own);
        return;
    }
    const DType precise = (DType)n->call.out[1]->dtype;
    const int ranks = a->group.size;
    const Whole all = gather(t, in[1], in[2], &a->group),
                d = {whole(t, in[1], ranks, precise, SPMD_P), whole(t, in[2], ranks, precise, SPMD_P)};
    Call call = n->call;
    call.in[1] = all.k, call.in[2] = all.v;
    attention_gradients(t, &call, a->unfused, dy, (AttentionGrads){own.q, d.k, d.v, own.bias, own.sink});
    scatter(t, d, &a->group, own.k, own.v);
    whole_drop(t, d);
    whole_drop(t, all);
}

Tensor *context_gather(Tape *t, const AttentionInputs *x, AttentionAttr attr, Group group, bool unfused) {
    const GatherAttr gather_attr = {attr, group, unfused};
    const OpDef *op = &OPS[unfused ? OP_attention_unfused : OP_attention];
    Call call = attention_call(x, &gather_attr);
    attention_outputs(t, &call, group.size * x->k->dim[0], unfused);
    tape_check(t, op, &call);
    const Whole all = gather(t, x->k, x->v, &group);
    call.in[1] = all.k, call.in[2] = all.v;
    attention_run(t, &call, unfused);
    whole_drop(t, all);
    call.in[1] = x->k, call.in[2] = x->v;
    tape_record(t, op, call, sizeof gather_attr, context_gather_backward);
    return call.out[0];
}
