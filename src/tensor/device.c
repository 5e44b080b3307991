#include "tensor/device.h"

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/mem.h"

static int cores(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
}

Device *device_cpu(int threads) {
    Device *d = mem_zero(1, sizeof *d);
    d->kind = DEVICE_CPU;
    d->pool = pool_new(threads > 0 ? threads : cores());
    return d;
}

Device *device_null(void) {
    Device *d = mem_zero(1, sizeof *d);
    d->kind = DEVICE_NULL;
    return d;
}

void device_free(Device *d) {
    if (!d) return;
    pool_free(d->pool);
    free(d);
}

size_t device_memory_available(void) {
    FILE *f = fopen("/proc/meminfo", "r");
    unsigned long long kib = 0;
    char line[128];
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) break;
    if (f) fclose(f);
    return kib ? (size_t)kib << 10 : SIZE_MAX;
}

/* Addresses on the null device start here: never mapped, never NULL. */
static void *null_base(void) { return (void *)(uintptr_t)SPACE_ALIGN; }

void *device_alloc(Device *d, size_t bytes, const char *what) {
    if (d->kind == DEVICE_NULL) return null_base();
    void *p = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(p != MAP_FAILED, "cannot allocate %zu bytes for %s", bytes, what);
    return p;
}

void device_release(Device *d, void *p, size_t bytes) {
    if (p && d->kind == DEVICE_CPU) munmap(p, bytes ? bytes : 1);
}

typedef struct Hole {
    size_t begin, end;
} Hole;

struct Space {
    Device *device;
    const char *name;
    char *base;
    size_t capacity, used, peak;
    Hole *holes; /* free ranges in ascending order, never adjacent */
    size_t n_holes, cap_holes;
};

/* Address space, not memory: as much as the machine has memory where it is mapped (there may be hundreds of
 * spaces: several for each rank that is a thread), without end where it is only counted. */
static size_t unplanned(const Device *d) {
    if (d->kind == DEVICE_NULL) return (size_t)1 << 60;
    return (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE) / SPACE_ALIGN * SPACE_ALIGN;
}

Space *space_new(Device *d, const char *name, size_t capacity) {
    Space *s = mem_zero(1, sizeof *s);
    s->device = d;
    s->name = name;
    s->capacity =
        capacity == SPACE_UNPLANNED ? unplanned(d) : (capacity + SPACE_ALIGN - 1) / SPACE_ALIGN * SPACE_ALIGN;
    s->base = device_alloc(d, s->capacity, name);
    space_reset(s);
    return s;
}

void space_free(Space *s) {
    if (!s) return;
    device_release(s->device, s->base, s->capacity);
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
        return s->base + at;
    }
    CHECK(0, "%s memory is full: %zu bytes asked for, %zu of %zu in use; the dry run planned for less",
          s->name, bytes, s->used, s->capacity);
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

size_t space_used(const Space *s) { return s->used; }
size_t space_peak(const Space *s) { return s->peak; }
