/* Runs an MoE layer on several ranks (threads), and on one rank, with the same tokens, weights and output gradient.
 * Collects the complete results of both. */
#pragma once

#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "kernels/ops.h"
#include "nn/moe.h"
#include "tape/tape_backward.h"
#include "unit/ops/elements.h"
#include "unit/recording.h"

enum {
    SEQUENCE = 16,
    SAMPLES = 3,
    HIDDEN = 12,
    FFN = 8,
    EXPERTS = 8,
    MOE_PARAMS = 8,
    GRID_BITS = 20,
    MOE_SPACE = 1 << 20
};

typedef struct MoeLayout {
    int tp, cp, dp, etp, ep;
} MoeLayout;

typedef struct MoeCase {
    MoeLayout layout;
    MoeSpec spec;     /* fields that differ between cases */
    int microbatches; /* per data-parallel rank; 0 means 1 */
    bool joined;      /* on one rank, the samples of all data-parallel ranks are one microbatch */
    bool exact, recomputed, two_sweeps, planned;
    DType dtype;
} MoeCase;

/* The combined results of all ranks, with full gradients of the parameters. */
typedef struct MoeOutcome {
    Values y, dx, grad[MOE_PARAMS], counters;
    int64_t first_held[64]; /* number of rows that the experts of each rank computed */
} MoeOutcome;

static inline MoeSpec moe_spec(const MoeCase *c) {
    MoeSpec s = c->spec;
    s.router.hidden = HIDDEN;
    s.router.experts = EXPERTS;
    if (!s.router.topk) s.router.topk = 2;
    if (s.router.route.scaling == 0) s.router.route.scaling = 1;
    s.router.init_std = 0.5;
    s.ffn = FFN;
    s.activation = s.shared_activation = (ActivationAttr){.kind = ACT_SWIGLU};
    s.fc1_init_std = s.fc2_init_std = 0.5;
    return s;
}

typedef struct MoeRank {
    const MoeCase *c;
    MoeOutcome *out;
    const Layout *layout; /* NULL if there is one rank */
    int rank;
    int64_t rows, samples; /* size of a microbatch on this rank */
    RunContext run;
    Registry *registry;
    MoeSpec spec;
    Moe moe;
    Tensor *counters;
    Space *slot, *transient;
    Tape *tape;
} MoeRank;

/* The sequence position of this rank's row `row`. CP ranks have zigzag chunks, and TP ranks have equal parts of
 * these. */
static inline int64_t moe_position(const MoeRank *r, int64_t row) {
    if (!r->layout) return row;
    const int *at = r->layout->mesh.coordinate, cp = r->c->layout.cp;
    const int64_t chunk = SEQUENCE / (2 * cp), j = at[AXIS_TP] * r->rows + row;
    if (cp == 1) return j;
    return (j / chunk ? 2 * cp - 1 - at[AXIS_CP] : at[AXIS_CP]) * chunk + j % chunk;
}

static inline int64_t moe_first_sample(const MoeRank *r, int microbatch) {
    const int dp_rank = r->layout ? r->layout->mesh.coordinate[AXIS_DP] : 0;
    return (microbatch * (r->layout ? r->c->layout.dp : 1) + dp_rank) * r->samples;
}

/* For element e of a microbatch on this rank, the index in the whole batch [samples, sequence, HIDDEN]. */
static inline int64_t moe_whole(const MoeRank *r, int microbatch, int64_t e) {
    const int64_t line = e / HIDDEN, sample = moe_first_sample(r, microbatch) + line % r->samples;
    return (sample * SEQUENCE + moe_position(r, line / r->samples)) * HIDDEN + e % HIDDEN;
}

static inline SpmdType moe_dense_type(const MoeRank *r) {
    SpmdType type = 0;
    for (int a = AXIS_TP; r->layout && a <= AXIS_DP; a++)
        if (r->layout->mesh.size[a] > 1) type = spmd_with(type, a, SPMD_V);
    return type;
}

/* Fills a space with NaN, so that a read of uninitialized memory is detected. */
static inline void moe_poison(Space *s) {
    enum { BYTES = 1 << 17 };
    memset(space_take(s, BYTES), 0xFF, BYTES);
    space_reset(s);
}

/* Initializes the parameters with numbers on the exact lane's grid, and allocates the counters. */
static inline void moe_open(MoeRank *r, Device *device, size_t slot, size_t transient) {
    r->run = (RunContext){.device = device,
                          .dtype = r->c->dtype,
                          .seed = 5,
                          .layout = r->layout,
                          .comm = r->run.comm,
                          .exact = r->c->exact};
    r->registry = registry_new(r->layout);
    r->spec = moe_spec(r->c);
    r->counters = state_counters(r->registry, COMM_SUM, moe_branch.counters(&r->spec));
    moe_branch.init(&r->moe, r->registry, "mlp", &r->spec, r->counters);
    registry_allocate(r->registry, device, r->c->dtype, true);
    states_allocate(r->registry, 0);
    states_begin_step(r->registry);
    registry_init(r->registry, 7);
    for (int i = 0; i < r->registry->n && device->kind != DEVICE_NULL; i++) {
        Param *p = r->registry->params[i];
        for (int64_t e = 0; e < p->count; e++)
            store_element(&p->master, e,
                          ldexp(rint(ldexp(load_element(&p->master, e), GRID_BITS)), -GRID_BITS));
        if (p == r->moe.router.bias)
            for (int64_t e = 0; e < p->count; e++)
                store_element(&p->master, e, ldexp((double)(3 * e % 5), -6));
    }
    registry_round_values(r->registry);
    r->slot = space_new(device, "slot", slot);
    r->transient = space_new(device, "transient", transient);
    if (device->kind != DEVICE_NULL && slot == MOE_SPACE) moe_poison(r->slot), moe_poison(r->transient);
    r->tape = tape_new(&r->run, r->slot, r->transient);
}

static inline void moe_close(MoeRank *r) {
    tape_free(r->tape);
    space_free(r->slot), space_free(r->transient);
    states_free(r->registry);
    registry_free(r->registry);
    device_free(r->run.device);
}

static inline Tensor *moe_block(Tape *t, void *moe, Tensor *x) {
    return moe_branch.forward(t, moe, &(Feed){.tokens = NULL}, NULL, x);
}

/* Checks that ops read only memory that has been written, and counts the rows that this rank's experts
 * compute. */
static inline void moe_watch(void *arg, const OpDef *op, const Call *c) {
    MoeRank *r = arg;
    for (int i = 0; r->run.device->kind != DEVICE_NULL && i < CALL_IN; i++) {
        const Tensor *x = c->in[i];
        for (int64_t e = 0; x && x->dtype != I64 && tensor_is_contiguous(x) && e < tensor_count(x); e++)
            CHECK(isfinite(load_element(x, e)), "'%s' reads what nobody has written", op->name);
    }
    if (op->number == OP_grouped_linear && r->run.device->kind != DEVICE_NULL)
        r->out->first_held[r->rank] = ((const int64_t *)c->in[2]->data)[c->in[2]->dim[0] - 1];
}

static inline void moe_microbatch(MoeRank *r, int microbatch) {
    Tape *t = r->tape;
    const int64_t dim[] = {r->rows, r->samples, HIDDEN};
    const bool dry = r->run.device->kind == DEVICE_NULL;
    MicrobatchContext context = RECORDING;
    context.first_sample = moe_first_sample(r, microbatch);
    if (r->c->joined && !r->layout)
        context.aux_scale = r->c->layout.dp; /* the losses are means over the samples of all dp ranks */
    tape_begin(t, &context);
    tape_trace(t, moe_watch, r);
    Tensor *x = tape_input(t, NULL, r->c->dtype, 3, dim, moe_dense_type(r));
    Tensor *dy = tape_tensor(t, r->c->dtype, 3, dim);
    for (int64_t e = 0; !dry && e < tensor_count(x); e++) {
        store_element(x, e, grid_value("moe x", 0, moe_whole(r, microbatch, e), GRID_COARSE));
        store_element(dy, e, grid_value("moe dy", 1, moe_whole(r, microbatch, e), GRID_COARSE));
    }
    Tensor *y = r->c->recomputed ? tape_block(t, moe_block, &r->moe, x) : moe_block(t, &r->moe, x);
    for (int64_t e = 0; !dry && e < tensor_count(y); e++)
        r->out->y.v[moe_whole(r, microbatch, e)] = load_element(y, e);
    tape_backward(t, y, dy, r->c->two_sweeps ? NEED_DX : NEED_ALL);
    Tensor *dx = tape_grad(t, x);
    for (int64_t e = 0; !dry && e < tensor_count(x); e++)
        r->out->dx.v[moe_whole(r, microbatch, e)] = load_element(dx, e);
    if (r->c->two_sweeps) tape_backward(t, y, NULL, NEED_DW);
}

static inline int moe_microbatches(const MoeRank *r) {
    const int n = r->c->microbatches ? r->c->microbatches : 1;
    return r->layout || r->c->joined ? n : n * r->c->layout.dp;
}

/* Adds this rank's gradients to the full ones, as sync does. */
static inline void moe_add_gradients(const MoeRank *r) {
    for (int i = 0; i < r->registry->n; i++) {
        const Param *p = r->registry->params[i];
        if (p->spec.flags & PARAM_BUFFER) continue;
        for (int64_t row = 0; row < p->rows; row++)
            for (int64_t k = 0; k < p->columns; k++)
                r->out->grad[i].v[param_global_row(p, row) * p->spec.dim[1] + p->first_column + k] +=
                    load_element(&p->main_grad, row * p->columns + k);
    }
    for (int64_t i = 0; i < r->out->counters.n; i++) r->out->counters.v[i] += load_element(r->counters, i);
}

/* Runs all microbatches of a rank. Ranks take turns to add their results. */
static inline void moe_run(MoeRank *r, Comm *comm) {
    size_t slot = MOE_SPACE, transient = MOE_SPACE;
    r->run.comm = comm;
    if (r->c->planned) {
        moe_open(r, device_null(), SPACE_UNPLANNED, SPACE_UNPLANNED);
        moe_microbatch(r, 0);
        slot = space_peak(r->slot), transient = space_peak(r->transient);
        moe_close(r);
    }
    moe_open(r, device_cpu(1), slot, transient);
    for (int m = 0; m < moe_microbatches(r); m++) moe_microbatch(r, m);
    if (comm) {
        const Group all = mesh_group(&r->layout->mesh, MASK_DENSE);
        for (int i = 0; i < comm_world(comm); i++) {
            if (i == r->rank) moe_add_gradients(r);
            comm_run(comm, &(CommCall){.kind = COMM_BARRIER, .group = all, .site = "turn"});
        }
    } else {
        moe_add_gradients(r);
    }
    moe_close(r);
}

static inline Layout moe_layout(const MoeLayout *l, int world, int rank) {
    const int size[AXES] = {
        [AXIS_TP] = l->tp, [AXIS_CP] = l->cp, [AXIS_PP] = 1, [AXIS_ETP] = l->etp, [AXIS_EP] = l->ep};
    return (Layout){.mesh = mesh_make(world, rank, size), .sequence_parallel = l->tp > 1};
}

static inline void moe_rank_main(void *arg, Comm *comm) {
    const MoeCase *c = ((void **)arg)[0];
    const Layout layout = moe_layout(&c->layout, comm_world(comm), comm_rank(comm));
    moe_run(&(MoeRank){.c = c,
                       .out = ((void **)arg)[1],
                       .layout = &layout,
                       .rank = comm_rank(comm),
                       .rows = SEQUENCE / c->layout.tp / c->layout.cp,
                       .samples = SAMPLES},
            comm);
}

static inline Values moe_values(int64_t n) { return (Values){mem_zero((size_t)n, sizeof(double)), n}; }

static inline MoeOutcome moe_outcome(const MoeCase *c) {
    Registry *r = registry_new(NULL);
    const MoeSpec spec = moe_spec(c);
    Moe moe;
    moe_branch.init(&moe, r, "mlp", &spec, NULL);
    const int64_t n = (c->microbatches ? c->microbatches : 1) * c->layout.dp * SAMPLES * SEQUENCE * HIDDEN;
    MoeOutcome o = {
        .y = moe_values(n), .dx = moe_values(n), .counters = moe_values(router_counters(EXPERTS))};
    for (int i = 0; i < r->n; i++) o.grad[i] = moe_values(param_logical_count(r->params[i]));
    states_free(r);
    registry_free(r);
    return o;
}

static inline MoeOutcome moe_on_ranks(const MoeCase *c) {
    MoeOutcome o = moe_outcome(c);
    comm_threads(c->layout.tp * c->layout.cp * c->layout.dp, NULL, moe_rank_main, (void *[]){(void *)c, &o});
    return o;
}

static inline MoeOutcome moe_on_one(const MoeCase *c) {
    MoeOutcome o = moe_outcome(c);
    moe_run(
        &(MoeRank){.c = c, .out = &o, .rows = SEQUENCE, .samples = SAMPLES * (c->joined ? c->layout.dp : 1)},
        NULL);
    return o;
}

static inline void moe_outcome_free(MoeOutcome *o) {
    free(o->y.v), free(o->dx.v), free(o->counters.v);
    for (int i = 0; i < MOE_PARAMS; i++) free(o->grad[i].v);
}
