#include "param/collect.h"

#include <string.h>

#include "base/fault.h"
#include "param/bucket.h"

/* Calls fn for each element of p in [begin, end) of the flat layout that the buffer holds: where it is there,
 * and where in the whole model's layout. */
typedef void ElementFn(void *arg, int64_t at, int64_t whole_at);

static void each_element(const Registry *r, const Param *p, const Param *in_whole, FlatBuffer kind,
                         int64_t begin, int64_t end, ElementFn *fn, void *arg) {
    int n;
    const FlatRange everything = {0, r->elements, 0}, *ranges = registry_ranges(r, kind, &n);
    if (!ranges) ranges = &everything, n = 1;
    for (int i = 0; i < n; i++) {
        const int64_t first = ranges[i].begin > begin ? ranges[i].begin : begin,
                      last = ranges[i].end < end ? ranges[i].end : end;
        for (int64_t e = first; e < last; e++) {
            const int64_t local = e - p->offset, row = param_global_row(p, local / p->columns);
            if (row < 0) continue;
            fn(arg, ranges[i].at + e - ranges[i].begin,
               in_whole->offset + row * in_whole->columns + p->first_column + local % p->columns);
        }
    }
}

static const Param *counterpart(const Registry *whole, const Param *p) {
    const Param *w = registry_find(whole, p->spec.name);
    CHECK(w, "the whole model has no parameter '%s'", p->spec.name);
    return w;
}

typedef struct Copying {
    const void *from;
    void *to;
    DType from_type, to_type;
} Copying;

static void *element(const void *flat, DType type, int64_t at) {
    return (char *)flat + (size_t)at * dtype_size(type);
}

static void to_whole(void *arg, int64_t at, int64_t whole_at) {
    const Copying *c = arg;
    dtype_convert(element(c->to, c->to_type, whole_at), c->to_type, element(c->from, c->from_type, at),
                  c->from_type, 1);
}

static void from_whole(void *arg, int64_t at, int64_t whole_at) {
    const Copying *c = arg;
    dtype_convert(element(c->to, c->to_type, at), c->to_type, element(c->from, c->from_type, whole_at),
                  c->from_type, 1);
}

void collect(const Registry *r, FlatBuffer kind, const void *flat, Comm *comm, const Registry *whole,
             double *out) {
    memset(out, 0, (size_t)whole->elements * sizeof *out);
    Copying c = {flat, out, r->precise, F64};
    for (int i = 0; i < r->n; i++) {
        const Param *p = r->params[i];
        if (!param_speaks(r, p)) continue;
        const FlatRange part = param_part_held(r, p);
        each_element(r, p, counterpart(whole, p), kind, part.begin, part.end, to_whole, &c);
    }
    if (comm) comm_all_reduce(comm, comm_everyone(comm), "collect", COMM_SUM, F64, out, whole->elements);
}

void spread(const Registry *whole, Registry *r) {
    CHECK(whole->precise == F64, "the whole model is F64");
    Copying c = {whole->masters, r->masters, F64, r->precise};
    for (int i = 0; i < r->n; i++) {
        const Param *p = r->params[i];
        each_element(r, p, counterpart(whole, p), FLAT_MASTERS, p->offset, p->offset + p->count, from_whole,
                     &c);
    }
}
