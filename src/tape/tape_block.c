/* Blocks, passes without a backward pass, offloaded layers and pauses. */
#include "base/fault.h"
#include "kernels/ops.h"
#include "tape/tape_state.h"

/* ---- blocks ---- */

typedef struct Block {
    BlockFn *fn;
    void *self;
} Block;

/* Runs the block with its tensors in the transient space. The caller frees these tensors. */
static Tensor *run_block(Tape *t, const Block *b, Tensor *x, bool recording) {
    Space *space = t->space;
    const bool outer = t->recording, in_module = t->in_module;
    t->space = t->transient;
    t->recording = recording;
    t->in_module = false;
    Tensor *y = b->fn(t, b->self, x);
    t->space = space;
    t->recording = outer;
    t->in_module = in_module;
    return y;
}

static void drop_to(Tape *t, size_t mark) {
    while (t->dropped.n > mark) tape_drop(t, t->dropped.items[--t->dropped.n]);
}

static void block_backward(Tape *t, const Node *n, Need need) {
    /* a block computes the gradients of both activations and parameters in the DX sweep */
    if (!(need & NEED_DX)) return;
    const Block *b = n->call.attr;
    Tensor *x = n->call.in[0];
    Tensor *inner = tape_alias(t, x), *earlier = x->grad;
    size_t first = t->n_nodes, mark = t->dropped.n;
    inner->grad = earlier; /* to which the block's ops add their gradients, as without tape_block */
    Tensor *y = run_block(t, b, inner, true);
    tape_grad_share(t, y, tape_grad(t, n->call.out[0]), need);
    tape_sweep(t, first, NEED_ALL);
    t->n_nodes = first;
    if (earlier) {
        x->grad = inner->grad;
    } else if (inner->grad) {
        tape_grad_share(t, x, inner->grad, need);
        tape_grad_release(t, inner);
    }
    drop_to(t, mark);
}

Tensor *tape_block(Tape *t, BlockFn *fn, void *self, Tensor *x) {
    Block b = {fn, self};
    size_t mark = t->dropped.n;
    Tensor *inside = run_block(t, &b, x, false);
    Tensor *y = tape_take_kept(t, (DType)inside->dtype, inside->ndim, inside->dim);
    y->flags = inside->flags & TENSOR_NEEDS_GRAD;
    y->spmd = inside->spmd;
    const Call keep = {.in = {inside}, .out = {y}};
    tape_call(t, &OPS[OP_copy], keep);
    tape_probe(t, TAPE_RAN, &OPS[OP_copy], &keep, NEED_ALL);
    drop_to(t, mark);
    tape_note_dropped(t, y);
    if (t->recording && y->flags & TENSOR_NEEDS_GRAD)
        tape_append(t, NULL, (Call){.in = {x}, .out = {y}, .attr = &b}, sizeof b, block_backward);
    return y;
}

/* ---- blocks whose output is discarded ---- */

static bool is_inside(const Tensor *x, const Tensor *outer) {
    const char *at = outer->data;
    return x && (const char *)x->data >= at && (const char *)x->data < at + tensor_bytes(outer);
}

typedef struct Discarded {
    Block block;
    Tensor *x, *y;
    /* the operands of y's readers that share its memory (y itself, views and aliases), and the address that they have */
    TensorList shares;
    char *at;
    /* while the output exists again: the output of the second run, and the ends of the lists before that run */
    Tensor *again;
    size_t first_node, first_dropped;
} Discarded;

/* Before the readers of y: runs the block again. A DW sweep needs only y, because the DX sweep has computed all
 * gradients of the block. */
static void play_readers(Tape *t, const Node *n, Need need) {
    Discarded *d = (Discarded *)n->call.attr;
    d->first_node = t->n_nodes;
    d->first_dropped = t->dropped.n;
    d->again = run_block(t, &d->block, d->x, need & NEED_DX);
    for (size_t i = 0; i < d->shares.n; i++) {
        Tensor *x = d->shares.items[i];
        x->data = (char *)d->again->data + ((char *)x->data - d->at);
    }
    d->at = d->again->data;
}

/* After the readers of y. A postponed gradient may still read y. */
static void play_discarded(Tape *t, const Node *n, Need need) {
    const Discarded *d = n->call.attr;
    if (need & NEED_DX && d->y->grad) {
        tape_grad_share(t, d->again, tape_grad(t, d->y), need);
        tape_sweep(t, d->first_node, NEED_ALL);
        tape_grad_release(t, d->y);
    }
    tape_run_postponed(t);
    t->n_nodes = d->first_node;
    drop_to(t, d->first_dropped);
}

Tensor *tape_block_discarded(Tape *t, BlockFn *fn, void *self, Tensor *x) {
    Discarded *d = tape_alloc(t, sizeof *d);
    const size_t mark = t->dropped.n;
    *d = (Discarded){.block = {fn, self}, .x = x};
    d->y = run_block(t, &d->block, x, false);
    while (t->dropped.n > mark) {
        Tensor *inside = t->dropped.items[--t->dropped.n];
        if (inside != d->y) tape_drop(t, inside);
    }
    if (t->recording) tape_append(t, NULL, (Call){.attr = d}, 0, play_discarded);
    return d->y;
}

/* Adds x to the list unless it is NULL, does not share the memory of y, or is in the list. */
static void add_share(Tape *t, Discarded *d, Tensor *x) {
    TensorList *l = &d->shares;
    if (!x || !is_inside(x, d->y)) return;
    for (size_t i = 0; i < l->n; i++)
        if (l->items[i] == x) return;
    if (l->n == l->cap) {
        Tensor **more = tape_alloc(t, (l->cap = 2 * l->cap + 2) * sizeof *more);
        for (size_t i = 0; i < l->n; i++) more[i] = l->items[i];
        l->items = more;
    }
    l->items[l->n++] = x;
}

void tape_discard(Tape *t, Tensor *y) {
    tape_drop(t, y);
    if (!t->recording) return;
    size_t i = t->n_nodes - 1;
    while (t->nodes[i].backward != play_discarded || ((const Discarded *)t->nodes[i].call.attr)->y != y) i--;
    Discarded *d = (Discarded *)t->nodes[i].call.attr;
    d->at = y->data;
    add_share(t, d, y);
    for (size_t n = i + 1; n < t->n_nodes; n++) {
        for (int k = 0; k < CALL_IN; k++) add_share(t, d, t->nodes[n].call.in[k]);
        for (int k = 0; k < CALL_OUT; k++) add_share(t, d, t->nodes[n].call.out[k]);
    }
    tape_append(t, NULL, (Call){.attr = d}, 0, play_readers);
}

/* ---- passes without a backward pass ---- */

void tape_frees_begin(Tape *t) {
    CHECK(t->space == t->slot && !t->recording, "tensors are freed inside a block or before a backward pass");
    t->space = t->transient;
}

void tape_free_except(Tape *t, const Tensor *const *kept, int n) {
    TensorList *l = &t->dropped;
    size_t left = 0;
    for (size_t i = 0; i < l->n; i++) {
        bool keeps = false;
        for (int k = 0; k < n; k++) keeps = keeps || is_inside(kept[k], l->items[i]);
        if (keeps)
            l->items[left++] = l->items[i];
        else
            tape_drop(t, l->items[i]);
    }
    l->n = left;
}

void tape_frees_end(Tape *t) { t->space = t->slot; }

/* ---- offloading: nodes that mark where a layer begins and ends ---- */

static int64_t layer_of(const Node *n, Need need) {
    CHECK(need == NEED_ALL, "offloaded activations are available for only one sweep");
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
    CHECK(t->space == t->slot, "a layer is offloaded inside another layer or a block");
    t->space = offload_enter(t->offload, layer);
    if (t->recording) tape_append(t, NULL, (Call){.attr = &layer}, sizeof layer, play_begin);
}

void tape_offload_end(Tape *t, int64_t layer) {
    if (!t->offload) return;
    t->space = t->slot;
    if (!t->recording) return;
    offload_leave(t->offload, layer);
    tape_append(t, NULL, (Call){.attr = &layer}, sizeof layer, play_end);
}

typedef struct ModuleRun {
    OffloadModule module;
    int64_t number;
} ModuleRun;

static void play_module_left(Tape *t, const Node *n, Need need) {
    CHECK(need == NEED_ALL, "offloaded activations are available for only one sweep");
    const ModuleRun *r = n->call.attr;
    offload_need(t->module[r->module].offload, r->number);
}

static void play_module_begun(Tape *t, const Node *n, Need need) {
    (void)need;
    const ModuleRun *r = n->call.attr;
    tape_run_postponed(t);
    offload_finish(t->module[r->module].offload, r->number);
}

void tape_offload_module_to(Tape *t, OffloadModule m, Offload *o, int64_t least) {
    t->module[m].offload = o;
    t->least = least;
}

void tape_module_begin(Tape *t, OffloadModule m) {
    const ModuleRun r = {m, t->module[m].runs};
    if (!t->module[m].offload || t->space != t->slot) return;
    if (!t->module[m].space) {
        t->module[m].space = offload_enter(t->module[m].offload, r.number);
        t->module[m].runs++;
        if (t->recording) tape_append(t, NULL, (Call){.attr = &r}, sizeof r, play_module_begun);
    }
    t->space = t->module[m].space;
    t->in_module = true;
}

void tape_module_end(Tape *t) {
    if (t->in_module) t->space = t->slot;
    t->in_module = false;
}

void tape_modules_leave(Tape *t) {
    for (int m = 0; m < OFFLOAD_MODULES; m++) {
        if (!t->module[m].space) continue;
        const ModuleRun r = {(OffloadModule)m, t->module[m].runs - 1};
        t->module[m].space = NULL;
        if (!t->recording) continue;
        offload_leave(t->module[m].offload, r.number);
        tape_append(t, NULL, (Call){.attr = &r}, sizeof r, play_module_left);
    }
}

/* ---- pauses ---- */

static void pause_in_backward(Tape *t, const Node *n, Need need) {
    (void)n, (void)need;
    if (t->fiber) fiber_pause(t->fiber);
}

void tape_pause_halfway(Tape *t) {
    if (!layout_is_sequence_parallel(t->context->layout)) return;
    if (t->fiber && !t->playing) fiber_pause(t->fiber);
    if (t->recording && t->context->keeps_gathered)
        tape_append(t, NULL, (Call){.attr = NULL}, 0, pause_in_backward);
}
