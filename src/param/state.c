#include "param/state.h"

#include <stdlib.h>

#include "base/fault.h"

typedef struct State {
    const StateKind *kind;
    void *self;
    size_t bytes; /* device memory that the state has allocated */
} State;

struct States {
    State *state;
    int n;
    Tensor **part; /* the counters, in the order of registration */
    int n_parts;
    int64_t n_counters;
    Tensor counters;
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

Tensor *state_counters(Registry *r, int64_t n) {
    struct States *s = states_of(r);
    CHECK(!s->counters.ndim, "counters come after states_allocate");
    Tensor *t = arena_alloc(r->arena, sizeof *t);
    *t = tensor_make(NULL, F64, 1, &n);
    s->part = mem_grow(s->part, (size_t)s->n_parts + 1, sizeof(Tensor *));
    s->part[s->n_parts++] = t;
    s->n_counters += n;
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

void states_allocate(Registry *r, int64_t positions) {
    struct States *s = states_of(r);
    for (int i = 0; i < s->n; i++)
        if (s->state[i].kind->allocate)
            s->state[i].bytes = s->state[i].kind->allocate(s->state[i].self, r, positions);
    if (!s->n_counters) return;
    s->counters = tensor_make(NULL, F64, 1, &s->n_counters);
    s->counters.data = device_alloc(r->device, tensor_bytes(&s->counters), "step counters");
    double *at = s->counters.data;
    for (int i = 0; i < s->n_parts; at += tensor_count(s->part[i++])) s->part[i]->data = at;
}

void states_free(Registry *r) {
    struct States *s = states_of(r);
    for (int i = 0; i < s->n; i++)
        if (s->state[i].bytes) s->state[i].kind->release(s->state[i].self, r->device);
    if (s->counters.data) device_release(r->device, s->counters.data, tensor_bytes(&s->counters));
    free(s->state);
    free(s->part);
    free(s);
    r->states = NULL;
}

const Tensor *states_counters(const Registry *r) {
    static const Tensor NONE = {0};
    return r->states ? &r->states->counters : &NONE;
}

size_t states_bytes(const Registry *r) {
    const Tensor *counters = states_counters(r);
    size_t bytes = counters->ndim ? tensor_bytes(counters) : 0;
    for (int i = 0; r->states && i < r->states->n; i++) bytes += r->states->state[i].bytes;
    return bytes;
}

/* ---- events ---- */

void states_begin_step(Registry *r) {
    Tensor *counters = &states_of(r)->counters;
    if (counters->data) registry_zero(r, counters);
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
