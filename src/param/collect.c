#include "param/collect.h"

#include <string.h>

#include "base/fault.h"
#include "param/bucket.h"

/* A copy between one of this rank's flat buffers and the full model's F64 buffer. */
typedef struct Copying {
    const Registry *registry;
    FlatBuffer kind;
    void *flat;
    double *whole;
    bool gathers; /* true for copies to the full model, and false for copies from the full model */
} Copying;

static const Param *counterpart(const Registry *whole, const Param *p) {
    const Param *w = registry_find(whole, p->spec.name);
    CHECK(w, "the full model has no parameter '%s'", p->spec.name);
    return w;
}

/* Returns the address in the full model of element e of this rank's flat layout, or NULL if e is padding. */
static double *place(const Copying *c, const Param *p, const Param *in_whole, int64_t e) {
    const int64_t local = e - p->offset, row = param_global_row(p, local / p->columns);
    if (row < 0) return NULL;
    return c->whole + in_whole->offset + row * in_whole->columns + p->first_column + local % p->columns;
}

/* Copies elements [begin, end) of the flat layout. Element `begin` is element `at` of the buffer. */
static void copy_range(const Copying *c, const Param *p, const Param *in_whole, FlatRange r) {
    const DType type = registry_dtype(c->registry, c->kind);
    const size_t size = dtype_size(type);
    char *flat = r.on_host ? c->registry->host_masters : c->flat;
    DeviceView view =
        device_view(c->registry->device, flat + (size_t)r.at * size, (size_t)(r.end - r.begin) * size,
                    c->gathers ? VIEW_READ : VIEW_READ | VIEW_WRITE);
    for (int64_t e = r.begin; e < r.end; e++) {
        void *here = (char *)view.data + (size_t)(e - r.begin) * size;
        double *there = place(c, p, in_whole, e);
        if (!there) continue;
        if (c->gathers)
            dtype_convert(there, F64, here, type, 1);
        else
            dtype_convert(here, type, there, F64, 1);
    }
    device_view_end(&view);
}

/* Copies the elements in [begin, end) that the buffer holds. */
static void copy_held(const Copying *c, const Param *p, const Param *in_whole, int64_t begin, int64_t end) {
    int n;
    const FlatRange everything = {0, c->registry->elements, 0, false},
                    *ranges = registry_ranges(c->registry, c->kind, &n);
    if (!ranges) ranges = &everything, n = 1;
    const int64_t together = VIEW_BYTES / (int64_t)dtype_size(registry_dtype(c->registry, c->kind));
    for (int i = 0; i < n; i++) {
        const int64_t first = ranges[i].begin > begin ? ranges[i].begin : begin,
                      last = ranges[i].end < end ? ranges[i].end : end;
        for (int64_t e = first; e < last; e += together)
            copy_range(c, p, in_whole,
                       (FlatRange){e, last - e < together ? last : e + together,
                                   ranges[i].at + e - ranges[i].begin, ranges[i].on_host});
    }
}

void registry_gather_whole(const Registry *r, FlatBuffer kind, const void *flat, Comm *comm,
                           const Registry *whole, double *out) {
    memset(out, 0, (size_t)whole->elements * sizeof *out);
    const Copying c = {r, kind, (void *)flat, out, true};
    for (int i = 0; i < r->n; i++) {
        const Param *p = r->params[i];
        if (!param_is_primary(r, p)) continue;
        const FlatRange part = param_part_held(r, p);
        copy_held(&c, p, counterpart(whole, p), part.begin, part.end);
    }
    if (comm) comm_all_reduce(comm, comm_everyone(comm), "gather_whole", COMM_SUM, F64, out, whole->elements);
}

void registry_gather_owners(const Registry *r, Comm *comm, const Registry *whole, double *out) {
    memset(out, 0, (size_t)whole->elements * sizeof *out);
    const Copying c = {.registry = r, .whole = out};
    for (int i = 0; comm && i < r->n; i++) {
        const Param *p = r->params[i];
        if (!param_is_primary(r, p)) continue;
        const FlatRange part = param_part_held(r, p);
        for (int64_t e = part.begin; e < part.end; e++) {
            double *there = place(&c, p, counterpart(whole, p), e);
            if (there) *there = comm_rank(comm);
        }
    }
    if (comm) comm_all_reduce(comm, comm_everyone(comm), "gather_whole", COMM_SUM, F64, out, whole->elements);
}

void registry_scatter_whole(const Registry *whole, Registry *r) {
    CHECK(whole->precise == F64, "the full model must be F64");
    DeviceView masters =
        device_view(whole->device, whole->masters, (size_t)whole->elements * sizeof(double), VIEW_READ);
    const Copying c = {r, FLAT_MASTERS, r->masters, masters.data, false};
    for (int i = 0; i < r->n; i++) {
        const Param *p = r->params[i];
        copy_held(&c, p, counterpart(whole, p), p->offset, p->offset + p->count);
    }
    device_view_end(&masters);
}
