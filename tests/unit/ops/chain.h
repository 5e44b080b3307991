/* Runs consecutive ops on a given device, as in a training step. No wait or timing separates them, so a kernel may
 * begin while the previous one still runs (kernels/cuda/pdl.cuh). The results, even of a recording, must be bitwise
 * equal to those with a wait after each op. */
#pragma once

#include <string.h>

#include "kernels/attr.h"
#include "kernels/ops.h"
#include "unit/cmocka_all.h"
#include "unit/ops/elements.h"

enum { CHAIN_WIDTH = 4096, CHAIN_PERIOD = 65521, CHAIN_ROUNDS = 3 };

/* A to D are [rows, 1, width]. SEEN is eight tensors as large as an END; each is written once. */
enum { NOTHING, A, B, C, D, SEEN, RSTD = SEEN + 8, DGAIN, TABLE, PLACES };
enum { PARAMS = PLACES + 1, MOMENTS, SQUARES, VALUES, LISTED };
/* EIGHTH, END and LAST select rows: the last 1/8, the last 1/64, the last one (without its dimension). ADD:
 * the op adds to the operand. GAIN: the gain, which is the last part that an update writes. */
enum { EIGHTH = 32, END = 64, LAST = 128, ADD = 256, TENSOR = 31, GAIN = VALUES | LAST };

typedef struct ChainStep {
    OpNumber op;
    int in[4], out[CALL_OUT];
} ChainStep;

/* The last accesses of the previous kernel touch memory that an op with an END reads or writes. The op is so small that,
 * without synchronization, it could begin before that use. */
static const ChainStep CHAIN[] = {
    {OP_activation, {A}, {B}},
    {OP_activation, {B | END}, {SEEN}},
    {OP_rope, {B, TABLE, TABLE, PLACES}, {D}},
    {OP_norm, {D | END, GAIN}, {SEEN + 1, RSTD | END}},
    {OP_norm, {D, GAIN}, {C, RSTD}},
    {OP_rope, {C | END, TABLE, TABLE, PLACES | END}, {SEEN + 2}},
    {OP_add_norm, {C, D, GAIN}, {A, B, RSTD}},
    {OP_add_norm, {A | END, B | END, GAIN}, {SEEN + 3, SEEN + 4, RSTD | END}},
    {OP_norm_grad, {C, A, GAIN, RSTD}, {B | ADD, DGAIN | ADD}},
    {OP_norm_grad, {B, D, GAIN, RSTD}, {C | ADD, DGAIN | ADD}},
    {OP_activation_grad, {C, D}, {B}},
    {OP_norm_grad, {B | END, A | END, GAIN, RSTD | END}, {SEEN + 5, DGAIN | ADD}},
    {OP_activation, {B}, {A}},
    {OP_activation_grad, {A | END, D | END}, {SEEN + 6}},
    {OP_rope, {A, TABLE, TABLE, PLACES}, {C | ADD}},
    {OP_activation, {D | END}, {A | END}},
    {OP_norm, {B, GAIN}, {D, RSTD}},
    {OP_rope, {C | END, TABLE, TABLE, PLACES | END}, {B | END}},
    {OP_activation, {D}, {A}},
    {OP_adamw, {A | EIGHTH}, {PARAMS, MOMENTS, SQUARES, VALUES}},
    {OP_norm, {A, GAIN}, {B, RSTD}},
    {OP_adamw, {B | EIGHTH}, {PARAMS, MOMENTS, SQUARES, VALUES}},
    {OP_norm, {D | END, GAIN}, {SEEN + 7, RSTD | END}},
};

static inline const void *chain_attr(OpNumber op) {
    static const ActivationAttr gelu = {.kind = ACT_GELU_TANH};
    static const NormAttr norm = {.rms = true, .eps = 1e-5};
    static const RopeAttr rope = {.dim = 128};
    static const AdamAttr adam = {{{.lr = 0.5, .eps = 1e-8}}, 0.5, 0.5, 0.5, 0.5, 1};
    if (op == OP_activation || op == OP_activation_grad) return &gelu;
    return op == OP_rope ? (const void *)&rope : op == OP_adamw ? (const void *)&adam : &norm;
}

typedef struct Chain {
    Device *device;
    Tensor t[LISTED];
    char *start[LISTED], *want[LISTED]; /* in host memory */
} Chain;

static inline void chain_take(Chain *c, int i, DType dtype, int ndim, const int64_t *dim) {
    Tensor *t = &c->t[i], host;
    *t = tensor_make(NULL, dtype, ndim, dim);
    const size_t bytes = tensor_bytes(t), period = CHAIN_PERIOD * dtype_size(dtype);
    t->data = device_alloc(c->device, bytes, "a test");
    c->start[i] = mem_zero(1, bytes), c->want[i] = mem_alloc(bytes);
    if (i == PLACES || i == MOMENTS || i == SQUARES) return; /* their initial values are 0 */
    host = *t, host.data = c->start[i];
    for (int64_t e = 0; e < tensor_count(t) && e < CHAIN_PERIOD; e++)
        store_element(&host, e, grid_value("chain", i, e, GRID_COARSE));
    for (size_t at = period; at < bytes; at += period)
        memcpy(c->start[i] + at, c->start[i], bytes - at < period ? bytes - at : period);
}

/* A tensor with all rows has 64 MiB on a GPU. */
static inline void chain_open(Chain *c, Device *d) {
    const int64_t rows = d->kind == DEVICE_CUDA ? 8192 : 128, w = CHAIN_WIDTH, places = 8;
    *c = (Chain){.device = d};
    for (int i = A; i <= D; i++) chain_take(c, i, BF16, 3, (int64_t[]){rows, 1, w});
    for (int i = SEEN; i < RSTD; i++) chain_take(c, i, BF16, 3, (int64_t[]){rows / 64, 1, w});
    chain_take(c, RSTD, F32, 1, &rows);
    chain_take(c, DGAIN, F32, 1, &w);
    chain_take(c, TABLE, F32, 2, (int64_t[]){places, 64});
    chain_take(c, PLACES, I64, 2, (int64_t[]){rows, 1});
    for (int64_t r = 0; r < rows; r++) ((int64_t *)c->start[PLACES])[r] = r % places;
    for (int i = PARAMS; i <= SQUARES; i++) chain_take(c, i, F32, 2, (int64_t[]){rows / 8, w});
    chain_take(c, VALUES, BF16, 2, (int64_t[]){rows / 8, w});
}

static inline void chain_close(Chain *c) {
    for (int i = A; i < LISTED; i++) {
        device_release(c->device, c->t[i].data, tensor_bytes(&c->t[i]));
        free(c->start[i]), free(c->want[i]);
    }
}

/* Returns NULL if there is no such operand. For rope, rows are samples of one position. */
static inline Tensor *chain_operand(const Chain *c, OpNumber op, int what, Tensor *t) {
    if (!what) return NULL;
    *t = c->t[what & TENSOR];
    const DType dtype = (DType)t->dtype;
    int64_t n = t->dim[0];
    if (what & EIGHTH) n /= 8;
    if (what & END) n /= 64;
    if (what & LAST) n = 1;
    t->data = (char *)t->data + (size_t)((t->dim[0] - n) * t->stride[0]) * dtype_size(dtype);
    t->dim[0] = n;
    if (what & LAST) *t = tensor_make(t->data, dtype, 1, (int64_t[]){CHAIN_WIDTH});
    if (op == OP_rope && t->ndim == 3)
        *t = tensor_make(t->data, dtype, 5, (int64_t[]){1, n, 4, CHAIN_WIDTH / 512, 128});
    if (what & ADD) t->flags = TENSOR_ACCUM;
    return t;
}

static inline void chain_run(const Chain *c, bool waits) {
    for (const ChainStep *s = CHAIN; s < CHAIN + sizeof CHAIN / sizeof *CHAIN; s++) {
        Tensor in[4], out[CALL_OUT];
        Call call = {.attr = chain_attr(s->op), .device = c->device};
        for (int i = 0; i < 4; i++) call.in[i] = chain_operand(c, s->op, s->in[i], &in[i]);
        for (int j = 0; j < CALL_OUT; j++) call.out[j] = chain_operand(c, s->op, s->out[j], &out[j]);
        call_run(&OPS[s->op], &call);
        if (waits) device_wait(c->device);
    }
}

static inline void chain_begin(const Chain *c) {
    for (int i = A; i < LISTED; i++)
        device_write(c->device, c->t[i].data, c->start[i], tensor_bytes(&c->t[i]));
}

/* Returns the number of tensors that differ between a run and the run with waits. The run is that of `graph`,
 * unless it is NULL. */
static inline int chain_differs(const Chain *c, DeviceGraph *graph) {
    int differ = 0;
    chain_begin(c);
    if (graph)
        device_graph_launch(c->device, graph);
    else
        chain_run(c, false);
    for (int i = A; i < LISTED; i++) {
        DeviceView got = device_view(c->device, c->t[i].data, tensor_bytes(&c->t[i]), VIEW_READ);
        const bool same = !memcmp(got.data, c->want[i], got.bytes);
        if (!same) print_message("%s: tensor %d differs\n", graph ? "recorded" : "called", i);
        differ += !same;
        device_view_end(&got);
    }
    return differ;
}

static inline void ops_have_bits_of_waits(Device *d) {
    OpProfile *profile = d->profile;
    DeviceGraph *graph = NULL;
    int differ = 0;
    Chain c;
    chain_open(&c, d);
    chain_begin(&c);
    chain_run(&c, true);
    for (int i = A; i < LISTED; i++) device_read(d, c.want[i], c.t[i].data, tensor_bytes(&c.t[i]));
    d->profile = NULL; /* timing would add events between ops */
    if (d->kind == DEVICE_CUDA) device_graph_begin(d), chain_run(&c, false), graph = device_graph_end(d);
    for (int i = 0; i < CHAIN_ROUNDS; i++) {
        differ += chain_differs(&c, NULL);
        if (graph) differ += chain_differs(&c, graph);
    }
    d->profile = profile;
    device_graph_free(d, graph);
    chain_close(&c);
    assert_int_equal(differ, 0);
}
