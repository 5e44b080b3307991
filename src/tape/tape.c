#include "tape/tape.h"

#include <stdlib.h>
#include <string.h>

#include "tape/tape_state.h"

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
    for (int m = 0; m < OFFLOAD_MODULES; m++) {
        if (t->module[m].offload) offload_begin(t->module[m].offload);
        t->module[m].runs = 0, t->module[m].space = NULL;
    }
    t->in_module = false;
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

/* ---- tensors ---- */

Tensor *tape_header(Tape *t, Tensor value) {
    Tensor *x = arena_alloc(t->arena, sizeof *x);
    *x = value;
    return x;
}

Tensor *tape_take(Tape *t, Space *space, DType dtype, int ndim, const int64_t *dim) {
    Tensor *x = tape_header(t, tensor_make(NULL, dtype, ndim, dim));
    x->data = space_take(space, tensor_bytes(x));
    return x;
}

void tape_output_to(Tape *t, void *memory) { t->output = memory; }

void tape_output_next(Tape *t) { t->output_next = t->output; }

/* Returns a tensor that exists until the current forward pass is discarded. */
Tensor *tape_take_kept(Tape *t, DType dtype, int ndim, const int64_t *dim) {
    const Tensor x = tensor_make(NULL, dtype, ndim, dim);
    Space *space = t->in_module && tensor_count(&x) < t->least ? t->slot : t->space;
    if (!t->output_next || space != t->slot) return tape_take(t, space, dtype, ndim, dim);
    t->output_next = false;
    return tape_header(t, tensor_make(t->output, dtype, ndim, dim));
}

void tape_note_dropped(Tape *t, Tensor *x) {
    TensorList *l = &t->dropped;
    if (t->space != t->transient) return;
    if (l->n == l->cap) {
        l->cap = l->cap ? 2 * l->cap : 64;
        l->items = mem_grow(l->items, l->cap, sizeof *l->items);
    }
    l->items[l->n++] = x;
}

Tensor *tape_tensor(Tape *t, DType dtype, int ndim, const int64_t *dim) {
    Tensor *x = tape_take_kept(t, dtype, ndim, dim);
    tape_note_dropped(t, x);
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
        /* in a tensor that is not a gradient, refs is the number of views whose backward functions have not
         * run */
        base->refs++;
    return tape_header(t, v);
}

Tensor *tape_input(Tape *t, void *data, DType dtype, int ndim, const int64_t *dim, SpmdType type) {
    Tensor *x =
        data ? tape_header(t, tensor_make(data, dtype, ndim, dim)) : tape_take(t, t->slot, dtype, ndim, dim);
    x->flags = TENSOR_NEEDS_GRAD;
    x->spmd = type;
    return x;
}

Tensor *tape_scratch(Tape *t, DType dtype, int ndim, const int64_t *dim) {
    return tape_take(t, t->transient, dtype, ndim, dim);
}

void tape_drop(Tape *t, Tensor *x) { space_give(t->transient, x->data, tensor_bytes(x)); }

Tensor *tape_alias(Tape *t, const Tensor *x) {
    Tensor *y = tape_header(t, *x);
    y->flags &= TENSOR_NEEDS_GRAD;
    y->grad = y->base = NULL;
    y->refs = 0;
    return y;
}

Tensor *tape_detach(Tape *t, const Tensor *x) {
    Tensor *y = is_parameter(x) ? tape_header(t, *x) : tape_alias(t, x);
    y->flags &= (uint8_t)~TENSOR_NEEDS_GRAD;
    return y;
}
