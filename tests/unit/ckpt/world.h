/* Runs ranks that save and load, for the tests of this folder. The value of an element is a function of its
 * parameter, its position and the checkpoint's step, so the expected content of a layout and its hash can be
 * computed without a checkpoint. */
#pragma once

#include "unit/config_helper.h"

#include "base/fault.h"
#include "base/hash.h"
#include "base/philox.h"
#include "ckpt/ckpt.h"
#include "models/model.h"
#include "unit/ckpt/folder.h"

enum { LAYERS = 5, STAGES = 4, ITEMS = 2, RANKS = 8 };
static const char *const SUFFIXES[ITEMS] = {"", ".exp_avg"};

typedef struct Case {
    const char *name;
    int size[AXES]; /* tp cp dp pp etp ep edp; dp and edp are computed from the world size */
    int world;
    int stages, layers[STAGES]; /* stage i is on pipeline rank i % pp */
    bool shares;                /* whether data-parallel ranks shard all buffers, at arbitrary positions */
} Case;

static const Case CASES[] = {
    {"one rank", {1, 1, 0, 1, 1, 1, 0}, 1, 1, {5}, false},
    {"tp2", {2, 1, 0, 1, 2, 1, 0}, 2, 1, {5}, false},
    {"tp4 ep4", {4, 1, 0, 1, 1, 4, 0}, 4, 1, {5}, false},
    {"pp2", {1, 1, 0, 2, 1, 1, 0}, 2, 2, {3, 2}, false},
    {"pp3 uneven", {1, 1, 0, 3, 1, 1, 0}, 3, 3, {1, 4, 0}, false},
    {"pp2 of two chunks", {1, 1, 0, 2, 1, 1, 0}, 2, 4, {1, 1, 2, 1}, false},
    {"dp2 ep2", {1, 1, 0, 1, 1, 2, 0}, 2, 1, {5}, false},
    {"dp2 shared", {1, 1, 0, 1, 1, 1, 0}, 2, 1, {5}, true},
    {"dp4 ep4 shared", {1, 1, 0, 1, 1, 4, 0}, 4, 1, {5}, true},
    {"cp2 dp2 ep2 shared", {1, 2, 0, 1, 1, 2, 0}, 4, 1, {5}, true},
    {"tp2 dp2 etp2 ep2", {2, 1, 0, 1, 2, 2, 0}, 4, 1, {5}, false},
    {"tp2 pp2 dp2 ep2 shared", {2, 1, 0, 2, 1, 2, 0}, 8, 2, {2, 3}, true},
};
enum { CASE_COUNT = sizeof CASES / sizeof *CASES };

/* The model has GQA, SwiGLU, a tied embedding with padding, a dense layer before MoE layers with a shared
 * expert, and a bias that is not trained. */
static inline Setup *model_of(const Case *c) {
    Setup *s = setup_new("--num-layers %d --hidden-size 8 --num-attention-heads 4 --group-query-attention "
                         "--num-query-groups 2 --ffn-hidden-size 12 --swiglu --disable-bias-linear "
                         "--vocab-size 31 --make-vocab-size-divisible-by 5 --num-experts 4 "
                         "--moe-router-topk 2 --moe-layer-freq [0,1,1,1,1] --moe-ffn-hidden-size 4 "
                         "--moe-shared-expert-intermediate-size 8 --moe-router-score-function sigmoid "
                         "--moe-router-enable-expert-bias",
                         LAYERS);
    s->config.tensor_model_parallel_size = c->size[AXIS_TP]; /* the padding of the vocabulary depends on it */
    config_finish(&s->config, s->arena, 0);
    return s;
}

static inline Model *gpt_of(const Setup *s, const Case *c, int rank) {
    StagePart stages[STAGES];
    ModelPlace place = {.stages = stages, .n_stages = c->stages};
    place.layout.mesh = mesh_make(c->world, rank, c->size);
    place.layout.sequence_parallel = c->size[AXIS_TP] > 1;
    int64_t first = 0;
    for (int i = 0; i < c->stages; first += c->layers[i++])
        stages[i] = (StagePart){
            .first_layer = first, .layers = c->layers[i], .embedding = i == 0, .head = i == c->stages - 1};
    return model_new(&s->config, &place);
}

static inline uint32_t value(const char *name, int item, int64_t iteration, int64_t element) {
    return philox_u32(hash_name(name), (uint64_t)(iteration * ITEMS + item), (uint64_t)element);
}

/* ---- a rank's buffers ---- */

typedef struct Buffer {
    FlatRange *ranges; /* NULL: all */
    int n;
    int64_t elements;
    uint32_t *flat;
} Buffer;

static inline int ascending(const void *a, const void *b) {
    const FlatRange *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* If ranks share parameters, each is split into equal pieces and a remainder, so that pieces end in the middle of
 * rows. */
static inline Buffer buffer_new(const Registry *r, bool shares) {
    Buffer b = {.elements = r->elements};
    const Mesh *m = &r->layout.mesh;
    if (shares) b.ranges = mem_zero((size_t)r->n, sizeof *b.ranges), b.elements = 0;
    for (int i = 0; shares && i < r->n; i++) {
        const Param *p = r->params[i];
        const Group g = mesh_group(m, p->spec.expert ? 1u << AXIS_EDP : 1u << AXIS_CP | 1u << AXIS_DP);
        const bool whole = p->spec.flags & PARAM_BUFFER;
        FlatRange cut = {p->offset + (whole ? 0 : p->count * g.rank / g.size),
                         p->offset + (whole ? p->count : p->count * (g.rank + 1) / g.size), b.elements,
                         false};
        b.ranges[b.n++] = cut;
        b.elements += cut.end - cut.begin;
    }
    if (shares) qsort(b.ranges, (size_t)b.n, sizeof *b.ranges, ascending);
    b.flat = mem_alloc((size_t)b.elements * 4 + 4);
    memset(b.flat, 0xa5, (size_t)b.elements * 4);
    return b;
}

static inline void buffer_free(Buffer *b) { free(b->ranges), free(b->flat); }

/* Returns NULL if this rank does not own the element. */
static inline uint32_t *place_of(const Buffer *b, int64_t element) {
    if (!b->ranges) return &b->flat[element];
    for (int i = 0; i < b->n; i++)
        if (b->ranges[i].begin <= element && element < b->ranges[i].end)
            return &b->flat[b->ranges[i].at + element - b->ranges[i].begin];
    return NULL;
}

/* Fills the buffer, or checks that stored elements have their values, and that padding and unstored elements
 * are unchanged. */
static inline void visit(const Registry *r, int item, int64_t iteration, const Buffer *b, bool fill) {
    for (int i = 0; i < r->n; i++) {
        const Param *p = r->params[i];
        const int64_t width = p->spec.ndim == 2 ? p->spec.dim[1] : 1;
        const bool absent = item && p->spec.flags & PARAM_BUFFER;
        for (int64_t e = 0; e < p->count; e++) {
            const int64_t row = param_global_row(p, e / p->columns);
            uint32_t *at = place_of(b, p->offset + e);
            if (!at) continue;
            uint32_t want = 0xa5a5a5a5;
            if (row >= 0 && !absent)
                want = value(p->spec.name, item, iteration, row * width + p->first_column + e % p->columns);
            if (fill) *at = want;
            CHECK(*at == want, "%s%s: element %lld is %x, not %x", p->spec.name, SUFFIXES[item], (long long)e,
                  *at, want);
        }
    }
}

static inline void expect_untouched(const Buffer *b) {
    for (int64_t i = 0; i < b->elements; i++)
        CHECK(b->flat[i] == 0xa5a5a5a5, "a failed load has changed memory");
}

/* ---- a world ---- */

typedef struct Trip {
    const Case *layout;
    const char *load, *save; /* if load is NULL, values are computed by the formula */
    int64_t iteration;
    bool async;
    Err error[RANKS];
} Trip;

static inline Err save(const Trip *t, Comm *comm, const Registry *r, const CkptItem *items,
                       const Buffer *buffers) {
    const CkptSaveOptions o = {.iteration = t->iteration, .keep_newest = 2};
    json_t *state = json_pack("{s:i}", "consumed", 17);
    CkptSaving *saving;
    Err e = t->async ? ckpt_save_start(t->save, &o, comm, r, items, ITEMS, state, &saving)
                     : ckpt_save(t->save, &o, comm, r, items, ITEMS, state);
    if (t->async && !e.code) {
        for (int k = 0; k < ITEMS; k++) /* the run continues while the writer is busy */
            memset(buffers[k].flat, 0x11, (size_t)buffers[k].elements * 4);
        e = ckpt_save_finish(saving);
    }
    json_decref(state);
    return e;
}

static inline Err load(const char *dir, Comm *comm, const Registry *r, const CkptItem *items) {
    Ckpt *c;
    ERR_RETURN(ckpt_open(dir, -1, comm, &c));
    Err e = ckpt_load(c, r, items, ITEMS);
    ckpt_close(c);
    return e;
}

static inline void travel(void *arg, Comm *comm) {
    Trip *t = arg;
    Setup *s = model_of(t->layout);
    Model *m = gpt_of(s, t->layout, comm_rank(comm));
    Device *device = device_cpu(1);
    model_allocate(m, device, F32, 1, true);
    const Registry *r = m->registry;
    Buffer buffers[ITEMS];
    CkptItem items[ITEMS];
    Err e = ERR_OK;
    for (int k = 0; k < ITEMS; k++) {
        buffers[k] = buffer_new(r, t->layout->shares);
        items[k] = (CkptItem){.suffix = SUFFIXES[k],
                              .flat = buffers[k].flat,
                              .dtype = F32,
                              .sharded = buffers[k].ranges != NULL,
                              .ranges = buffers[k].ranges,
                              .n_ranges = buffers[k].n};
        if (!t->load) visit(r, k, t->iteration, &buffers[k], true);
    }
    if (t->load) e = load(t->load, comm, r, items);
    for (int k = 0; k < ITEMS; k++) {
        if (e.code)
            expect_untouched(&buffers[k]);
        else
            visit(r, k, t->iteration, &buffers[k], false);
    }
    if (!e.code && t->save) e = save(t, comm, r, items, buffers);
    t->error[comm_rank(comm)] = e;
    for (int k = 0; k < ITEMS; k++) buffer_free(&buffers[k]);
    model_free(m);
    device_free(device);
    setup_free(s);
}

/* Returns the error, which is the same on all ranks. */
static inline Err run(Trip t) {
    comm_threads(t.layout->world, NULL, travel, &t);
    for (int i = 1; i < t.layout->world; i++)
        CHECK(t.error[i].code == t.error[0].code && !strcmp(t.error[i].msg, t.error[0].msg),
              "rank %d says '%s', rank 0 '%s'", i, t.error[i].msg, t.error[0].msg);
    return t.error[0];
}

static inline Str digest_of(const char *dir) {
    Ckpt *c;
    Str out = {0};
    assert_ok(ckpt_open(dir, -1, NULL, &c));
    assert_ok(ckpt_digest(c, &out));
    ckpt_close(c);
    return out;
}
