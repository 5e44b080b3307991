/* Repeats one call in the memory of a device, with guard bytes before and after every operand and in the gaps
 * of strided operands. Requirements:
 * - guards and inputs are unchanged, and outputs are written completely;
 * - on the device of the first run, outputs are bitwise equal to those of that run, although their alignment
 * differs;
 * - an output with ADDS in kernels/ops.def is added to if TENSOR_ACCUM is set. */
#pragma once

#include <stdio.h>

#include "base/exact_sum.h"
#include "kernels/ops.h"
#include "unit/cmocka_all.h"
#include "unit/ops/case.h"

/* UNSET is NaN in any float type, which reveals unwritten elements and reads outside of elements. The memory
 * around outputs has a different pattern, which cannot result from arithmetic on NaN. */
enum { GUARD_BYTES = 64, UNSET = 0xFF, GUARD = 0xA5 };

typedef struct Guarded {
    Tensor t, image; /* t is in device memory, image in `block` */
    Device *device;
    char *memory;
    unsigned char *block,
        *before; /* copies of the memory on the host: the latest one, and the one from before the call */
    bool *owned; /* whether each byte belongs to an element */
    size_t bytes;
} Guarded;

static inline size_t element_byte(const Tensor *t, int64_t row, int64_t column) {
    return (size_t)(tensor_row_offset(t, row) + column) * dtype_size((DType)t->dtype);
}

/* Elements begin at a multiple of 16 bytes if `aligned`, otherwise only at a multiple of their size. */
static inline Guarded guarded_like(const Tensor *t, Device *device, bool is_output, bool aligned) {
    Guarded g = {.t = *t, .image = *t, .device = device};
    const size_t size = dtype_size((DType)t->dtype), begin = GUARD_BYTES + (aligned ? 0 : size);
    size_t span = 1;
    for (int i = 0; i < t->ndim && tensor_count(t); i++) span += (size_t)((t->dim[i] - 1) * t->stride[i]);
    g.bytes = 2 * GUARD_BYTES + (span + 1) * size;
    g.block = mem_aligned(g.bytes + GUARD_BYTES);
    g.before = mem_alloc(g.bytes);
    g.owned = mem_zero(g.bytes, 1);
    g.memory = device_alloc(device, g.bytes, "an operand");
    memset(g.block, is_output ? GUARD : UNSET, g.bytes);
    g.t.data = g.memory + begin;
    g.image.data = g.block + begin;
    for (int64_t r = 0, n = tensor_rows(t); r < n; r++) {
        const size_t at = begin + element_byte(t, r, 0), row = (size_t)tensor_width(t) * size;
        memset(g.owned + at, true, row);
        memset(g.block + at, UNSET, row);
    }
    return g;
}

static inline void copy_elements(Tensor *to, const Tensor *from) {
    const size_t row = (size_t)tensor_width(from) * dtype_size((DType)from->dtype);
    for (int64_t r = 0, n = tensor_rows(from); r < n; r++)
        memcpy((char *)to->data + element_byte(to, r, 0), (const char *)from->data + element_byte(from, r, 0),
               row);
}

static inline bool same_elements(const Tensor *a, const Tensor *b) {
    const size_t row = (size_t)tensor_width(a) * dtype_size((DType)a->dtype);
    for (int64_t r = 0, n = tensor_rows(a); r < n; r++)
        if (memcmp((const char *)a->data + element_byte(a, r, 0),
                   (const char *)b->data + element_byte(b, r, 0), row))
            return false;
    return true;
}

/* Fills a tensor with numbers that any type represents. Integers are valid words of an ExactSum. */
static inline void fill_grid(Tensor *t, const char *name) {
    const uint64_t seed = hash_name(name);
    for (int64_t r = 0, n = tensor_rows(t), width = tensor_width(t); r < n; r++) {
        const int64_t at = tensor_row_offset(t, r);
        for (int64_t j = 0; j < width; j++)
            if (t->dtype == I64)
                ((int64_t *)t->data)[at + j] = j < EXACT_LIMBS ? 1 + j % 7 : 0;
            else
                store_element(t, at + j, grid_draw(seed, 99, r * width + j, GRID_COARSE));
    }
}

static inline void guarded_seal(Guarded *g) {
    memcpy(g->before, g->block, g->bytes);
    device_write(g->device, g->memory, g->block, g->bytes);
}

/* The loop has no branches, so that the compiler can vectorise it. */
static inline bool guarded_changed(const Guarded *g, bool is_output) {
    const unsigned char *now = g->block, *before = g->before;
    const bool *owned = g->owned;
    unsigned char changed = 0;
    if (!is_output) return memcmp(now, before, g->bytes);
    for (size_t i = 0; i < g->bytes; i++) changed |= (unsigned char)((now[i] ^ before[i]) & (owned[i] - 1));
    return changed;
}

static inline void guarded_check(Guarded *g, bool is_output, const OpDef *op, int operand) {
    device_read(g->device, g->block, g->memory, g->bytes);
    if (!guarded_changed(g, is_output)) return;
    for (size_t i = 0; i < g->bytes; i++)
        if ((!is_output || !g->owned[i]) && g->block[i] != g->before[i])
            fail_msg("op %s writes to byte %zd of %s %d", op->name,
                     (ssize_t)i - (ssize_t)((char *)g->t.data - g->memory),
                     is_output ? "around output" : "input", operand);
}

static inline void guarded_free(Guarded *g) {
    if (g->memory) device_release(g->device, g->memory, g->bytes);
    free(g->block), free(g->before), free(g->owned);
}

/* Whether the op also reads its outputs. */
static inline bool op_updates(const OpDef *op) {
    for (int i = 0; i < CALL_OUT; i++)
        if (op->out[i].updated) return true;
    return false;
}

/* Whether the call can add to output j. A copy can add to F64 only from F64; gradients through an activation
 * cannot be added. */
static inline bool can_add(const OpDef *op, const Call *c, int j) {
    return c->out[j] && op->out[j].adds && !(op->number == OP_linear_dgrad && c->in[2]) &&
           (op->number != OP_copy ||
            (c->out[0]->dtype != I64 && (c->in[0]->dtype == F64) == (c->out[0]->dtype == F64)));
}

/* Checks that the call has the operands of the op's row in kernels/ops.def. */
static inline void check_operands(const OpDef *op, const Call *c) {
    for (int i = 0; i < CALL_IN + CALL_OUT; i++) {
        const bool is_input = i < CALL_IN;
        const int k = is_input ? i : i - CALL_IN;
        const OpOperand *o = is_input ? &op->in[k] : &op->out[k];
        const bool is_given = is_input ? c->in[k] : c->out[k];
        if (is_given ? !o->text : o->text && !o->optional)
            fail_msg("op %s: %s %d (%s) is %s", op->name, is_input ? "input" : "output", k,
                     o->text ? o->text : "not an operand", is_given ? "given" : "missing");
    }
}

typedef struct ReplayHow {
    Device *device;
    bool add;      /* whether to add to all outputs for which that is possible */
    bool in_place; /* whether inputs that share memory with an output also do so here */
    bool aligned;
    unsigned left_out; /* mask of outputs that are NULL */
} ReplayHow;

typedef struct Replay {
    ReplayHow how;
    Guarded in[CALL_IN], out[CALL_OUT];
    Call call;
} Replay;

static inline void replay_inputs(Replay *r, const OpDef *op, const Call *c) {
    for (int i = 0; i < CALL_IN; i++) {
        if (!c->in[i]) continue;
        r->in[i] = guarded_like(c->in[i], r->how.device, false, r->how.aligned);
        r->call.in[i] = &r->in[i].t;
        copy_elements(&r->in[i].image, c->in[i]);
        for (int j = 0; j < CALL_OUT; j++)
            if (c->out[j] && c->out[j]->data == c->in[i]->data)
                fill_grid(&r->in[i].image, op->name); /* whether the call has overwritten the operand */
        guarded_seal(&r->in[i]);
    }
}

/* The operands of c must be in host memory. */
static inline void replay_open(Replay *r, const OpDef *op, const Call *c, ReplayHow how) {
    *r = (Replay){.how = how, .call = *c};
    r->call.device = how.device;
    replay_inputs(r, op, c);
    for (int j = 0; j < CALL_OUT; j++) {
        if (how.left_out >> j & 1) r->call.out[j] = NULL;
        if (!r->call.out[j]) continue;
        Guarded *out = &r->out[j];
        *out = guarded_like(c->out[j], how.device, true, how.aligned);
        r->call.out[j] = &out->t;
        if (op_updates(op))
            copy_elements(&out->image, c->out[j]);
        else
            out->t.flags &= (uint8_t)~TENSOR_ACCUM;
        if (how.add && can_add(op, c, j)) {
            out->t.flags |= TENSOR_ACCUM;
            fill_grid(&out->image, op->name);
        }
        guarded_seal(out);
        for (int i = 0; how.in_place && i < CALL_IN; i++)
            if (c->in[i] && c->in[i]->data == c->out[j]->data)
                out->t.data = r->in[i].t.data, out->image.data = r->in[i].image.data;
    }
}

static inline bool shares_memory(const Call *c, int out) {
    for (int i = 0; i < CALL_IN; i++)
        if (c->in[i] && c->in[i]->data == c->out[out]->data) return true;
    return false;
}

static inline void replay_check_guards(Replay *r, const OpDef *op) {
    for (int i = 0; i < CALL_IN; i++)
        if (r->call.in[i]) {
            bool overwritten = false;
            for (int j = 0; j < CALL_OUT; j++)
                overwritten |= r->call.out[j] && r->call.out[j]->data == r->in[i].t.data;
            guarded_check(&r->in[i], overwritten, op, i);
        }
    for (int j = 0; j < CALL_OUT; j++)
        if (r->call.out[j]) guarded_check(&r->out[j], true, op, j);
}

static inline void replay_run(Replay *r, const OpDef *op) {
    call_run(op, &r->call);
    replay_check_guards(r, op);
}

static inline void replay_free(Replay *r) {
    for (int i = 0; i < CALL_IN; i++) guarded_free(&r->in[i]);
    for (int j = 0; j < CALL_OUT; j++) guarded_free(&r->out[j]);
}

/* Checks that sum = before + plain, up to the rounding of a different order of summation. */
static inline void check_sum(const OpDef *op, const Tensor *sum, const Tensor *before, const Tensor *plain,
                             double terms) {
    double u = dtype_roundoff((DType)sum->dtype), scale = 0;
    for (int64_t r = 0, n = tensor_rows(sum); r < n; r++)
        for (int64_t j = 0; j < tensor_width(sum); j++)
            scale = fmax(scale, 1 + fabs(load_element(plain, tensor_row_offset(plain, r) + j)));
    for (int64_t r = 0, n = tensor_rows(sum); r < n; r++)
        for (int64_t j = 0; j < tensor_width(sum); j++) {
            const double want = load_element(before, tensor_row_offset(before, r) + j) +
                                load_element(plain, tensor_row_offset(plain, r) + j);
            const double error = fabs(load_element(sum, tensor_row_offset(sum, r) + j) - want),
                         bound = 4 * sqrt(terms) * u * scale;
            if (!(error <= bound))
                fail_msg("op %s does not add: off by %g, bound 4 sqrt(%g) u %g = %g", op->name, error, terms,
                         scale, bound);
        }
}

/* A TapeTrace that runs all checks for one call, on the device of the call. */
static inline void replay_check(void *arg, const OpDef *op, const Call *c) {
    (void)arg;
    Replay plain, placed, sum, before;
    check_operands(op, c);
    replay_open(&plain, op, c, (ReplayHow){.device = c->device});
    replay_open(&placed, op, c, (ReplayHow){.device = c->device, .in_place = true});
    replay_open(&sum, op, c, (ReplayHow){.device = c->device, .add = true});
    replay_open(&before, op, c, (ReplayHow){.device = c->device, .add = true});
    replay_run(&plain, op);
    replay_run(&placed, op);
    replay_run(&sum, op);
    for (int j = 0; j < CALL_OUT; j++) {
        if (!c->out[j]) continue;
        bool had_history = shares_memory(c, j) || c->out[j]->flags & TENSOR_ACCUM;
        if (!had_history && !same_elements(c->out[j], &plain.out[j].image))
            fail_msg("op %s: output %d depends on alignment", op->name, j);
        if (!same_elements(&plain.out[j].image, &placed.out[j].image))
            fail_msg("op %s: output %d differs in place", op->name, j);
        if (can_add(op, c, j))
            check_sum(op, &sum.out[j].image, &before.out[j].image, &plain.out[j].image,
                      (double)(tensor_rows(c->in[0]) + tensor_width(c->in[0])));
    }
    replay_free(&plain), replay_free(&placed), replay_free(&sum), replay_free(&before);
}
