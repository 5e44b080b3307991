#include "tape/tape_backward.h"

#include <string.h>

#include "base/fault.h"
#include "kernels/ops.h"
#include "tape/spmd_infer.h"
#include "tape/tape_state.h"

/* ---- gradients ---- */

/* Finishes the postponed gradient if it belongs to a different bucket, so that the other bucket's reduction can
 * start (param/sync.h). */
static void end_bucket(Tape *t, const Param *next) {
    for (int i = 0; t->postponed.run && i < CALL_IN; i++) {
        const Tensor *x = t->postponed.call.in[i];
        if (is_parameter(x) && param_of(x)->bucket != next->bucket) tape_run_postponed(t);
    }
}

void tape_grad_drop(Tape *t, Tensor *g) {
    if (!--g->refs && !(g->flags & GRAD_BORROWED)) tape_drop(t, g);
}

void tape_grad_release(Tape *t, Tensor *x) {
    Tensor *g = x->grad;
    x->grad = NULL;
    if (g) tape_grad_drop(t, g);
}

Tensor *tape_grad_keep(Tape *t, Tensor *y) {
    Tensor *g = tape_grad(t, y);
    g->refs++;
    return g;
}

static Tensor *grad_new(Tape *t, Tensor *x) {
    x->grad = tape_take(t, t->transient, (DType)x->dtype, x->ndim, x->dim);
    x->grad->refs = 1;
    x->grad->spmd = spmd_dual_type(x->spmd);
    x->grad->flags = x->flags & OFF_GRID;
    return x->grad;
}

Tensor *tape_grad(Tape *t, Tensor *y) {
    (void)t;
    CHECK(y->grad, "this output has no gradient");
    CHECK(y->refs == 0, "%d views of this output have no gradient", y->refs);
    return y->grad;
}

static Tensor *view_grad(Tape *t, Tensor *x) {
    bool first = !x->grad;
    if (first) {
        Tensor *whole = x->base->grad ? x->base->grad : grad_new(t, x->base);
        Tensor *g = tape_header(t, *x);
        g->data = (char *)whole->data + ((char *)x->data - (char *)x->base->data);
        g->base = NULL;
        g->spmd = whole->spmd;
        x->grad = g;
        x->base->refs--;
    }
    Tensor *out = tape_header(t, *x->grad);
    out->flags = first ? 0 : TENSOR_ACCUM;
    return out;
}

/* Returns the main gradient. The first gradient of a step overwrites the memory, and later gradients are added. At ZeRO
 * stages 2 and 3, each sweep begins with such a first gradient. */
static Tensor *main_grad(Tape *t, Tensor *x) {
    if (t->context->sync) {
        end_bucket(t, param_of(x));
        sync_grad(t->context->sync, param_of(x));
    }
    if (!grad_is_unwritten(x->grad)) return x->grad;
    Tensor *first = tape_header(t, *x->grad);
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
    Tensor *out = tape_header(t, *x->grad);
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
    CHECK(!x->grad && !x->base, "a gradient can use its tensor's memory only if there is no other gradient "
                                "and the tensor is not a view");
    x->grad = tape_header(t, tensor_make(x->data, (DType)x->dtype, x->ndim, x->dim));
    x->grad->refs = 1;
    x->grad->spmd = spmd_dual_type(x->spmd);
    x->grad->flags = GRAD_BORROWED;
    return tape_header(t, *x->grad);
}

/* ---- the sweep ---- */

/* Call this function when a node's parameter gradients have been computed, or will never be computed. */
static void end_uses(Tape *t, const Call *call) {
    for (int i = 0; i < CALL_IN; i++) {
        if (!is_parameter(call->in[i])) continue;
        Param *p = param_of(call->in[i]);
        if (--t->uses[p->number] == 0) sync_ready(t->context->sync, p);
    }
}

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
    /* a copy, because a recompute node appends to the array of nodes, which may then move */
    Node n = t->nodes[i];
    Tensor *y = n.call.out[0];
    const Need shown = n.ahead ? need & NEED_DX : need;
    if (!y)
        n.backward(t, &n, need);
    else if (y->grad) { /* if NULL, no gradient depends on the node, or a DX sweep has finished the node */
        t->recording = false;
        if (shown) tape_probe(t, TAPE_PLAYS, n.op, &n.call, shown);
        n.backward(t, &n, need);
        if (shown) tape_probe(t, TAPE_PLAYED, n.op, &n.call, shown);
        bool dw_to_come = need == NEED_DX && has_parameter(&n);
        if (!dw_to_come) tape_grad_release(t, y);
    }
    if (t->context->sync && need & NEED_DW && !t->postpones) end_uses(t, &n.call);
    t->postpones = false;
}

void tape_sweep(Tape *t, size_t first, Need need) {
    const bool recording = t->recording, playing = t->playing;
    t->playing = true;
    for (size_t i = t->n_nodes; i-- > first;) play_node(t, i, need);
    tape_run_postponed(t);
    t->recording = recording;
    t->playing = playing;
}

void tape_give(Tape *t, Tensor *y, Tensor *dy) {
    CHECK(tensor_same_shape(y, dy), "the gradient's shape differs from the output's");
    Tensor *seed = tape_header(t, *dy);
    seed->flags = GRAD_BORROWED;
    /* counts the caller's reference, so that the gradient is shared, and therefore never written */
    seed->refs = 1;
    tape_grad_share(t, y, seed, NEED_DX);
}

void tape_play(Tape *t, Need need) { tape_sweep(t, 0, need); }
