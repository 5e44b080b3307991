#include "param/state.h"

#include <stdlib.h>

#include "base/fault.h"

typedef struct State {
    const StateKind *kind;
    void *self;
    size_t bytes; /* size of the device memory that the state has allocated */
} State;

/* The counters that share one reduction. */
typedef struct Counters {
    Tensor **part; /* in registration order */
    int n_parts;
    int64_t n;
    Tensor all;
} Counters;

enum { REDUCTIONS = COMM_MAX + 1 };

struct States {
    State *state;
    int n;
    Counters counters[REDUCTIONS];
};

static struct States *states_of(Registry *r) {
    if (!r->states) r->states = mem_zero(1, sizeof *r->states);
    return r->states;
}

Param *state_buffer(Registry *r, const char *name, int ndim, const int64_t *dim) {
    ParamSpec p = {.name = name,
                   .ndim = ndim,
                   .tp_split = SPLIT_NONE,
                   .invariant = true,
                   .init = {INIT_CONSTANT, 0},
                   .flags = PARAM_BUFFER | PARAM_NO_DECAY};
    for (int i = 0; i < ndim; i++) p.dim[i] = dim[i];
    return param_add(r, p);
}

Tensor *state_counters(Registry *r, CommReduction reduction, int64_t n) {
    Counters *c = &states_of(r)->counters[reduction];
    CHECK(!c->all.ndim, "counters are added after states_allocate");
    Tensor *t = arena_alloc(r->arena, sizeof *t);
    *t = tensor_make(NULL, F64, 1, &n);
    c->part = mem_grow(c->part, (size_t)c->n_parts + 1, sizeof(Tensor *));
    c->part[c->n_parts++] = t;
    c->n += n;
    return t;
}

void state_add(Registry *r, const StateKind *kind, void *self) {
    struct States *s = states_of(r);
    s->state = mem_grow(s->state, (size_t)s->n + 1, sizeof *s->state);
    s->state[s->n++] = (State){.kind = kind, .self = self};
}

void *state_find(const Registry *r, const StateKind *kind, int i) {
    for (int k = 0; r->states && k < r->states->n; k++)
        if (r->states->state[k].kind == kind && i-- == 0) return r->states->state[k].self;
    return NULL;
}

/* ---- memory ---- */

static void counters_allocate(Counters *c, Device *d) {
    if (!c->n) return;
    c->all = tensor_make(NULL, F64, 1, &c->n);
    c->all.data = device_alloc(d, tensor_bytes(&c->all), "step counters");
    double *at = c->all.data;
    for (int i = 0; i < c->n_parts; at += tensor_count(c->part[i++])) c->part[i]->data = at;
}

void states_allocate(Registry *r, int64_t positions) {
    struct States *s = states_of(r);
    for (int i = 0; i < s->n; i++)
        if (s->state[i].kind->allocate)
            s->state[i].bytes = s->state[i].kind->allocate(s->state[i].self, r, positions);
    for (int i = 0; i < REDUCTIONS; i++) counters_allocate(&s->counters[i], r->device);
}

void states_free(Registry *r) {
    struct States *s = states_of(r);
    for (int i = 0; i < s->n; i++)
        if (s->state[i].bytes) s->state[i].kind->release(s->state[i].self, r->device);
    for (Counters *c = s->counters; c < s->counters + REDUCTIONS; c++) {
        if (c->all.data) device_release(r->device, c->all.data, tensor_bytes(&c->all));
        free(c->part);
    }
    free(s->state);
    free(s);
    r->states = NULL;
}

const Tensor *states_counters(const Registry *r, CommReduction reduction) {
    static const Tensor NONE = {0};
    return r->states ? &r->states->counters[reduction].all : &NONE;
}

size_t states_bytes(const Registry *r) {
    size_t bytes = 0;
    for (int i = 0; r->states && i < REDUCTIONS; i++)
        if (r->states->counters[i].all.ndim) bytes += tensor_bytes(&r->states->counters[i].all);
    for (int i = 0; r->states && i < r->states->n; i++) bytes += r->states->state[i].bytes;
    return bytes;
}

/* ---- events ---- */

void states_begin_step(Registry *r) {
    for (Counters *c = states_of(r)->counters; c < states_of(r)->counters + REDUCTIONS; c++)
        if (c->all.data) registry_zero(r, &c->all);
}

void states_prepare(Registry *r, const StateContext *c) {
    struct States *s = states_of(r);
    for (int i = 0; i < s->n; i++)
        if (s->state[i].kind->prepare) s->state[i].bytes += s->state[i].kind->prepare(s->state[i].self, c);
}

void states_refresh(Registry *r, const StateContext *c) {
    struct States *s = states_of(r);
    for (int i = 0; i < s->n; i++)
        if (s->state[i].kind->refresh) s->state[i].kind->refresh(s->state[i].self, c);
}

void states_end_step(Registry *r, const StateContext *c) {
    struct States *s = states_of(r);
    for (int i = 0; i < s->n; i++)
        if (s->state[i].kind->end_step) s->state[i].kind->end_step(s->state[i].self, c);
}

void states_after_update(Registry *r) {
    struct States *s = r->states; /* NULL if no module has state */
    for (int i = 0; s && i < s->n; i++)
        if (s->state[i].kind->after_update) s->state[i].kind->after_update(s->state[i].self, r);
}
