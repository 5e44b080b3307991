#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/amount.h"
#include "base/fault.h"
#include "base/mem.h"
#include "tensor/backend.h"

typedef struct Hole {
    size_t begin, end;
} Hole;

struct Space {
    Device *device;
    const char *name;
    char *base;
    size_t capacity, used, peak;
    /* only for unplanned spaces: number of bytes from the base on that have memory and are counted as
     * allocated */
    size_t committed;
    bool planned;
    const char *limit; /* the limit on the capacity, for the message if the space is full */
    Hole *holes;       /* free ranges in ascending order; no two are adjacent */
    size_t n_holes, cap_holes;
};

/* Returns the size of an unplanned space, in bytes of address space, not of memory. On a CPU, each rank that
 * runs as a thread has several spaces, so a large layout has thousands of spaces. If each space has at most 32
 * GiB, about 4,000 spaces fit into the 128 TiB of a process. In a dry run, which only counts bytes, spaces can
 * be larger. */
static size_t unplanned(const Device *d) {
    if (d->kind == DEVICE_NULL) return (size_t)1 << 60;
    if (d->backend->memory) return d->backend->memory(d) / SPACE_ALIGN * SPACE_ALIGN;
    const size_t bytes = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE),
                 most = (size_t)32 << 30;
    return (bytes < most ? bytes : most) / SPACE_ALIGN * SPACE_ALIGN;
}

/* Returns NULL if there is not enough address space. */
static void *reserve(Device *d, size_t bytes) {
    return (d->backend->reserve ? d->backend->reserve : d->backend->alloc)(d, bytes);
}

static void unreserve(Space *s) {
    const DeviceBackend *backend = s->device->backend;
    s->device->allocated -= s->committed;
    if (backend->unreserve)
        backend->unreserve(s->device, s->base, s->capacity, s->committed);
    else if (backend->free)
        backend->free(s->device, s->base, s->capacity);
}

Err space_check(Device *d, int count) {
    const size_t bytes = unplanned(d);
    if (count == 0) return ERR_OK;
    Space s = {.device = d, .base = reserve(d, bytes), .capacity = bytes};
    if (!s.base)
        return err_infra(
            "this process cannot reserve %s of address space (not memory), and a run reserves this amount "
            "several times: raise the limit, for example with 'ulimit -v unlimited'",
            bytes_text((double)bytes).s);
    const Err e = space_check(d, count - 1);
    unreserve(&s);
    return e;
}

Space *space_new(Device *d, const char *name, size_t capacity) {
    Space *s = mem_zero(1, sizeof *s);
    s->device = d;
    s->name = name;
    s->capacity =
        capacity == SPACE_UNPLANNED ? unplanned(d) : (capacity + SPACE_ALIGN - 1) / SPACE_ALIGN * SPACE_ALIGN;
    s->planned = capacity != SPACE_UNPLANNED;
    s->limit = capacity != SPACE_UNPLANNED ? "the dry run planned less memory"
               : d->backend->memory        ? "the device has no more memory"
                                           : "an unplanned space cannot be larger";
    s->base = s->planned ? device_alloc(d, s->capacity, name) : reserve(d, s->capacity);
    CHECK(s->base, "cannot reserve %s of addresses for %s memory", bytes_text((double)s->capacity).s, name);
    space_reset(s);
    return s;
}

void space_free(Space *s) {
    if (!s) return;
    if (s->planned)
        device_release(s->device, s->base, s->capacity);
    else
        unreserve(s);
    free(s->holes);
    free(s);
}

static void hole_insert(Space *s, size_t at, Hole h) {
    if (s->n_holes == s->cap_holes) {
        s->cap_holes = s->cap_holes ? 2 * s->cap_holes : 16;
        s->holes = mem_grow(s->holes, s->cap_holes, sizeof *s->holes);
    }
    memmove(s->holes + at + 1, s->holes + at, (s->n_holes - at) * sizeof *s->holes);
    s->holes[at] = h;
    s->n_holes++;
}

static void hole_remove(Space *s, size_t at) {
    memmove(s->holes + at, s->holes + at + 1, (s->n_holes - at - 1) * sizeof *s->holes);
    s->n_holes--;
}

void space_reset(Space *s) {
    s->n_holes = s->used = 0;
    hole_insert(s, 0, (Hole){0, s->capacity});
}

static size_t rounded(size_t bytes) { return (bytes + SPACE_ALIGN - 1 + !bytes) / SPACE_ALIGN * SPACE_ALIGN; }

static void commit(Space *s, size_t end) {
    if (end <= s->committed) return;
    Device *d = s->device;
    const size_t from = s->committed;
    s->committed += d->backend->commit ? d->backend->commit(d, s->base, from, end) : end - from;
    device_count(d, s->committed - from);
    CHECK(s->committed >= end, "cannot allocate %s for %s memory: only %s could be allocated",
          bytes_text((double)end).s, s->name, bytes_text((double)s->committed).s);
}

void *space_take(Space *s, size_t bytes) {
    size_t need = rounded(bytes);
    for (size_t i = 0; i < s->n_holes; i++) { /* first fit */
        Hole *h = &s->holes[i];
        if (h->end - h->begin < need) continue;
        size_t at = h->begin;
        h->begin += need;
        if (h->begin == h->end) hole_remove(s, i);
        s->used += need;
        if (at + need > s->peak) s->peak = at + need;
        if (!s->planned) commit(s, at + need);
        return s->base + at;
    }
    CHECK(0, "%s memory is full: %zu bytes requested, %zu of %zu in use; %s", s->name, bytes, s->used,
          s->capacity, s->limit);
    return NULL;
}

void space_give(Space *s, void *p, size_t bytes) {
    size_t begin = (size_t)((char *)p - s->base), end = begin + rounded(bytes), i = 0;
    CHECK(end <= s->capacity, "%s memory: the freed block was not allocated from it", s->name);
    while (i < s->n_holes && s->holes[i].begin < begin) i++;
    s->used -= end - begin;
    bool joins_left = i > 0 && s->holes[i - 1].end == begin,
         joins_right = i < s->n_holes && s->holes[i].begin == end;
    if (joins_left) s->holes[i - 1].end = joins_right ? s->holes[i].end : end;
    if (joins_left && joins_right) hole_remove(s, i);
    if (!joins_left && joins_right) s->holes[i].begin = begin;
    if (!joins_left && !joins_right) hole_insert(s, i, (Hole){begin, end});
}

void *space_base(const Space *s) { return s->base; }
size_t space_capacity(const Space *s) { return s->capacity; }
size_t space_used(const Space *s) { return s->used; }
size_t space_peak(const Space *s) { return s->peak; }
