/* Runs causal attention forward and backward, with a sequence that is distributed over a ring of ranks, on any device.
 * On a null device, this is a dry run, which does not need the other ranks. */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "kernels/ops.h"
#include "ops/context_attention.h"
#include "tape/tape_backward.h"
#include "unit/ops/elements.h"
#include "unit/recording.h"

/* Sizes that cuDNN supports in every version: a step has a multiple of 128 keys. */
enum { RING_S = 1024, RING_B = 2, RING_G = 2, RING_R = 2, RING_D = 64, RING_BYTES = 64 << 20 };

enum { RING_Q, RING_K, RING_V, RING_DY, RING_INPUTS };
enum { RING_Y, RING_DQ, RING_DK, RING_DV, RING_RESULTS };
static const char *const RING_NAMES[RING_RESULTS] = {"y", "dq", "dk", "dv"};

/* The results for the whole sequence; each rank writes its rows. */
typedef struct RingResults {
    double *x[RING_RESULTS];
} RingResults;

typedef struct RingRank {
    Device *device;
    Comm *comm; /* NULL for one rank, or a dry run */
    int ranks, rank;
    DType dtype;
    TapeTrace *trace; /* NULL: none */
    void *trace_arg;
    RingResults *results; /* NULL for a dry run */
} RingRank;

static inline int64_t ring_heads(int i) { return i == RING_K || i == RING_V ? 1 : RING_R; }
static inline size_t ring_count(int64_t rows, int64_t heads) {
    return (size_t)(rows * RING_B * RING_G * heads * RING_D);
}

static inline RingResults ring_results_new(void) {
    RingResults r;
    for (int i = 0; i < RING_RESULTS; i++) r.x[i] = mem_zero(ring_count(RING_S, RING_R), sizeof *r.x[i]);
    return r;
}
static inline void ring_results_free(RingResults *r) {
    for (int i = 0; i < RING_RESULTS; i++) free(r->x[i]);
}

/* Maps element e of this rank's rows to an element of the whole sequence: rank r of n has chunks r and 2n-1-r of 2n. */
static inline int64_t ring_at(const RingRank *k, int64_t heads, int64_t e) {
    const int64_t width = RING_B * RING_G * heads * RING_D, row = e / width, chunk = RING_S / (2 * k->ranks);
    const int64_t position = (row < chunk ? k->rank : 2 * k->ranks - 1 - k->rank) * chunk + row % chunk;
    return (k->ranks == 1 ? row : position) * width + e % width;
}

static inline void ring_fill(const RingRank *k, Tensor *x, int which) {
    Tensor host = *x;
    host.data = mem_alloc(tensor_bytes(x));
    for (int64_t e = 0; e < tensor_count(x); e++)
        store_element(&host, e, grid_value("ring", which, ring_at(k, x->dim[3], e), GRID_COARSE));
    device_write(k->device, x->data, host.data, tensor_bytes(x));
    free(host.data);
}

static inline void ring_gather(const RingRank *k, const Tensor *x, int which) {
    Tensor host = *x;
    if (!k->results) return;
    host.data = mem_alloc(tensor_bytes(x));
    device_read(k->device, host.data, x->data, tensor_bytes(x));
    for (int64_t e = 0; e < tensor_count(x); e++)
        k->results->x[which][ring_at(k, x->dim[3], e)] = load_element(&host, e);
    free(host.data);
}

static inline void ring_on_tape(const RingRank *k, Tape *t) {
    const SpmdType type = k->ranks > 1 ? spmd_with(0, AXIS_CP, SPMD_V) : 0;
    const int64_t rows = RING_S / k->ranks;
    Tensor *x[RING_INPUTS];
    for (int i = 0; i < RING_INPUTS; i++) {
        const int64_t dim[] = {rows, RING_B, RING_G, ring_heads(i), RING_D};
        x[i] = i == RING_DY ? tape_tensor(t, k->dtype, 5, dim) : tape_input(t, NULL, k->dtype, 5, dim, type);
        ring_fill(k, x[i], i);
    }
    const AttentionAttr attr = {.scale = 0.125, .window_left = WINDOW_OFF, .heads = RING_G * RING_R};
    Tensor *y = op_context_attention(t, &(AttentionInputs){.q = x[RING_Q], .k = x[RING_K], .v = x[RING_V]},
                                     attr, (ContextPlan){.exchange = 1}, false);
    ring_gather(k, y, RING_Y);
    tape_backward(t, y, x[RING_DY], NEED_ALL);
    for (int i = RING_Q; i <= RING_V; i++) ring_gather(k, tape_grad(t, x[i]), RING_DQ + i);
}

static inline void ring_run(const RingRank *k) {
    const Layout layout = {.mesh =
                               mesh_make(k->ranks, k->rank, (const int[AXES]){1, k->ranks, 1, 1, 1, 1, 1})};
    const RunContext run = {.device = k->device, .dtype = k->dtype, .layout = &layout, .comm = k->comm};
    Space *slot = space_new(k->device, "slot", RING_BYTES),
          *transient = space_new(k->device, "transient", RING_BYTES);
    Tape *t = tape_new(&run, slot, transient);
    tape_trace(t, k->trace, k->trace_arg);
    tape_begin(t, &RECORDING);
    ring_on_tape(k, t);
    tape_free(t);
    space_free(slot), space_free(transient);
}

/* ---- which kernels run ---- */

typedef struct RingPaths {
    int64_t calls;
    size_t scratch;  /* largest scratch memory of an op */
    char other[300]; /* the first path that does not use cuDNN, or "" if there is none */
} RingPaths;

/* A TapeTrace whose arg is a RingPaths. */
static inline void ring_path(void *arg, const OpDef *op, const Call *c) {
    RingPaths *p = arg;
    if (op->number != OP_attention && op->number != OP_attention_grad) return;
    const char *path = call_path(op, c);
    p->calls++;
    if (!*p->other && strncmp(path, "cuDNN ", 6) != 0)
        snprintf(p->other, sizeof p->other, "%s: %s", op->name, path);
}

/* Plans the calls of a rank for the device, in a dry run. */
static inline RingPaths ring_plan(Device *device, int ranks, int rank, DType dtype) {
    RingPaths paths = {0};
    Device *planner = device_null_for(device);
    ring_run(&(RingRank){.device = planner,
                         .ranks = ranks,
                         .rank = rank,
                         .dtype = dtype,
                         .trace = ring_path,
                         .trace_arg = &paths});
    paths.scratch = planner->scratch;
    device_free(planner);
    return paths;
}
