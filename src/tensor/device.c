#include "tensor/device.h"

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/host_memory.h"
#include "base/mem.h"
#include "tensor/backend.h"

static int cores(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
}

/* ---- CPU ---- */

/* Pages are taken as they are touched. */
static void *map(Device *d, size_t bytes) {
    (void)d;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static void unmap(Device *d, void *p, size_t bytes) {
    (void)d;
    munmap(p, bytes);
}

static void copy(Device *d, void *to, const void *from, size_t bytes) {
    (void)d;
    memcpy(to, from, bytes);
}

static size_t available(const Device *d) {
    (void)d;
    return host_memory_available("");
}

Device *device_cpu(int threads) {
    static const DeviceBackend CPU = {.take = map, .give = unmap, .copy = copy, .available = available};
    Device *d = mem_zero(1, sizeof *d);
    d->kind = DEVICE_CPU;
    d->backend = &CPU;
    d->n_devices = 1;
    d->pool = pool_new(threads > 0 ? threads : cores());
    return d;
}

/* ---- null ---- */

/* Addresses start here: never mapped, never NULL. */
static void *null_take(Device *d, size_t bytes) {
    (void)d, (void)bytes;
    return (void *)(uintptr_t)SPACE_ALIGN;
}

Device *device_null(void) {
    static const DeviceBackend NONE = {.take = null_take};
    Device *d = mem_zero(1, sizeof *d);
    d->kind = DEVICE_NULL;
    d->backend = &NONE;
    d->n_devices = 1;
    return d;
}

Device *device_null_for(const Device *target) {
    Device *d = device_null();
    d->cuda = target->cuda, d->gemm_tuning = target->gemm_tuning, d->gemm_sm_margin = target->gemm_sm_margin;
    d->any_order = target->any_order;
    d->fp8_products = target->fp8_products;
    d->fp8_block_products = target->fp8_block_products;
    return d;
}

/* ---- any ---- */

#ifndef ISOTRON_CUDA
Err device_cuda(int rank, Device **out) {
    (void)rank;
    *out = NULL;
    return err_user(
        "--device cuda: this program was built without CUDA; build the preset 'cuda', or leave --device out");
}
#endif

Err device_open(bool cuda, int rank, int threads, Device **out) {
    if (!cuda) {
        *out = device_cpu(threads);
        return ERR_OK;
    }
    ERR_RETURN(device_cuda(rank, out));
    (*out)->pool = pool_new(threads > 0 ? threads : cores());
    return ERR_OK;
}

void device_free(Device *d) {
    if (!d) return;
    if (d->backend->close) d->backend->close(d);
    pool_free(d->pool);
    free(d);
}

const char *device_describe(const Device *d, char *buffer, size_t n) {
    if (d->backend->describe)
        d->backend->describe(d, buffer, n);
    else
        snprintf(buffer, n, "CPU (%d threads)", pool_threads(d->pool));
    return buffer;
}

void device_provide(Device *d, size_t scratch) {
    if (d->backend->provide) d->backend->provide(d, scratch);
}

size_t device_memory_available(const Device *d) { return d->backend->available(d); }

bool device_is_discrete(const Device *d) { return d && d->backend->apart; }

static size_t at_least_one(size_t bytes) { return bytes ? bytes : 1; }

void *device_alloc(Device *d, size_t bytes, const char *what) {
    void *p = d->backend->take(d, at_least_one(bytes));
    CHECK(p, "cannot allocate %zu bytes for %s", bytes, what);
    return p;
}

void device_release(Device *d, void *p, size_t bytes) {
    if (p && d->backend->give) d->backend->give(d, p, at_least_one(bytes));
}

void *device_host_alloc(Device *d, size_t bytes, const char *what) {
    bytes = at_least_one(bytes);
    void *p = d->backend->take_host ? d->backend->take_host(d, bytes) : map(d, bytes);
    CHECK(p, "cannot allocate %zu bytes of host memory for %s", bytes, what);
    return p;
}

void device_host_release(Device *d, void *p, size_t bytes) {
    if (!p) return;
    (d->backend->give_host ? d->backend->give_host : unmap)(d, p, at_least_one(bytes));
}

void device_wait(Device *d) {
    if (d->backend->wait) d->backend->wait(d);
}

void device_copy(Device *d, void *to, const void *from, size_t bytes) {
    if (bytes && d->backend->copy) d->backend->copy(d, to, from, bytes);
}

DeviceEvent *device_event_new(Device *d) { return d->backend->event ? d->backend->event(d) : NULL; }

void device_event_free(Device *d, DeviceEvent *e) {
    if (e) d->backend->no_event(d, e);
}

void device_copy_async(Device *d, void *to, const void *from, size_t bytes, DeviceEvent *done) {
    if (d->backend->copy_beside)
        d->backend->copy_beside(d, to, from, bytes, done);
    else
        device_copy(d, to, from, bytes);
}

void device_wait_event(Device *d, DeviceEvent *e) {
    if (d->backend->after) d->backend->after(d, e);
}

void device_record(Device *d) {
    CHECK(d->backend->record, "this device records no work");
    d->backend->record(d);
}

DeviceGraph *device_recorded(Device *d) { return d->backend->recorded(d); }
void device_play(Device *d, DeviceGraph *g) {
    d->backend->play(d, g);
    d->plays++;
}
void device_graph_free(Device *d, DeviceGraph *g) {
    if (g) d->backend->forget(d, g);
}

void device_replay(Device *d, DeviceRecording *r, void (*work)(void *arg), void *arg) {
    if (!r->warm) {
        work(arg);
        r->warm = true;
        return;
    }
    if (!r->graph) {
        device_record(d);
        work(arg);
        r->graph = device_recorded(d);
    }
    device_play(d, r->graph);
}

void device_recording_drop(Device *d, DeviceRecording *r) {
    device_graph_free(d, r->graph);
    r->graph = NULL;
}

void device_write(Device *d, void *at, const void *host, size_t bytes) {
    device_copy(d, at, host, bytes);
    device_wait(d);
}

void device_read(Device *d, void *host, const void *at, size_t bytes) { device_write(d, host, at, bytes); }

DeviceView device_view(Device *d, const void *at, size_t bytes, unsigned mode) {
    DeviceView v = {(void *)at, d, (void *)at, bytes, mode};
    if (!device_is_discrete(d)) return v;
    v.data = mem_alloc(bytes);
    if (mode & VIEW_READ) device_read(d, v.data, at, bytes);
    return v;
}

void device_view_end(DeviceView *v) {
    if (v->data == v->at) return;
    if (v->mode & VIEW_WRITE) device_write(v->device, v->at, v->data, v->bytes);
    free(v->data);
    v->data = v->at;
}

/* ---- spaces ---- */

typedef struct Hole {
    size_t begin, end;
} Hole;

struct Space {
    Device *device;
    const char *name;
    char *base;
    size_t capacity, used, peak;
    size_t backed; /* bytes from the base on that have memory; unplanned only */
    bool planned;
    const char *limit; /* why there is no more */
    Hole *holes;       /* free ranges in ascending order, never adjacent */
    size_t n_holes, cap_holes;
};

/* Address space, not memory. On a CPU there are several spaces for each rank that is a thread, thousands in a
 * large layout: with at most 32 GiB each, about 4,000 fit into the 128 TiB of a process. A dry run only
 * counts bytes. */
static size_t unplanned(const Device *d) {
    if (d->kind == DEVICE_NULL) return (size_t)1 << 60;
    if (d->backend->memory) return d->backend->memory(d) / SPACE_ALIGN * SPACE_ALIGN;
    const size_t bytes = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE),
                 most = (size_t)32 << 30;
    return (bytes < most ? bytes : most) / SPACE_ALIGN * SPACE_ALIGN;
}

Space *space_new(Device *d, const char *name, size_t capacity) {
    Space *s = mem_zero(1, sizeof *s);
    s->device = d;
    s->name = name;
    s->capacity =
        capacity == SPACE_UNPLANNED ? unplanned(d) : (capacity + SPACE_ALIGN - 1) / SPACE_ALIGN * SPACE_ALIGN;
    s->planned = capacity != SPACE_UNPLANNED || !d->backend->reserve;
    s->limit = capacity != SPACE_UNPLANNED ? "the dry run planned for less"
               : d->backend->memory        ? "the device has no more"
                                           : "a space without a plan has no more";
    s->base = s->planned ? device_alloc(d, s->capacity, name) : d->backend->reserve(d, s->capacity);
    space_reset(s);
    return s;
}

void space_free(Space *s) {
    if (!s) return;
    if (s->planned)
        device_release(s->device, s->base, s->capacity);
    else
        s->device->backend->unreserve(s->device, s->base, s->capacity, s->backed);
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

static void back(Space *s, size_t end) {
    if (end <= s->backed) return;
    s->backed += s->device->backend->back(s->device, s->base, s->backed, end);
    CHECK(s->backed >= end, "cannot allocate %zu bytes for %s memory, of which %zu are there", end, s->name,
          s->backed);
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
        if (!s->planned) back(s, at + need);
        return s->base + at;
    }
    CHECK(0, "%s memory is full: %zu bytes asked for, %zu of %zu in use; %s", s->name, bytes, s->used,
          s->capacity, s->limit);
    return NULL;
}

void space_give(Space *s, void *p, size_t bytes) {
    size_t begin = (size_t)((char *)p - s->base), end = begin + rounded(bytes), i = 0;
    CHECK(end <= s->capacity, "%s memory: a block is given back that was not taken from it", s->name);
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
size_t space_used(const Space *s) { return s->used; }
size_t space_peak(const Space *s) { return s->peak; }
