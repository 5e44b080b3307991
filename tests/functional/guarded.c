/* The program on a device whose memory the host cannot touch, as a GPU's, with the CPU's kernels: addresses
 * of its memory are pages that nobody may read or write; kernels, and the device's own copies, are given the
 * memory behind them. So host code that reads or writes what it should view is a fault, and so is an op that
 * is given memory of the host or more than it was taken for. Copies beside the kernels are done as late as
 * they may be, so that what does not wait for them finds what was there before; of copies in the order of the
 * kernels, what comes from such memory must stay until the next wait, and what goes there comes with it.
 * Linked with --wrap of the functions below; the program has no way in.
 *
 * GUARDED_SKIPS=op: rank 1 of a layout leaves out that op, for a search of what went wrong to find. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/fault.h"
#include "base/mem.h"
#include "late_copies.h"
#include "tensor/backend.h"
#include "tensor/call.h"

typedef struct Block {
    char *at, *memory; /* what the host sees; what is behind it */
    size_t bytes;
} Block;

/* A copy in the order of the kernels between the device and memory of device_host_alloc, until the next wait.
 */
typedef struct Pending {
    char *host, *content; /* what was copied from there, or belongs there */
    size_t bytes;
    bool goes_there;
} Pending;

typedef struct Guarded {
    Device device; /* first: device_free frees it */
    const DeviceBackend *cpu;
    const char *skips;    /* NULL: no op */
    Block *blocks, *host; /* the device's; of the host, for copies beside: behind `at` is the same */
    LateCopies late;
    Pending *pending;
    int n, n_host, n_pending;
} Guarded;

static Block *find_in(Block *blocks, int n, const void *p, size_t bytes) {
    for (Block *b = blocks; b < blocks + n; b++)
        if ((const char *)p >= b->at && (const char *)p + bytes <= b->at + b->bytes) return b;
    return NULL;
}

static Block *find(const Guarded *g, const void *p, size_t bytes) {
    return find_in(g->blocks, g->n, p, bytes);
}

/* What is behind an address; the host's memory is itself. */
static void *behind(const Guarded *g, const void *p, size_t bytes) {
    const Block *b = find(g, p, bytes);
    return b ? b->memory + ((const char *)p - b->at) : (void *)p;
}

/* ---- the device ---- */

static void *map(size_t bytes, int protection) {
    void *p = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static void *take(Device *d, size_t bytes) {
    Guarded *g = (Guarded *)d;
    const Block b = {map(bytes, PROT_NONE), map(bytes, PROT_READ | PROT_WRITE), bytes};
    if (!b.at || !b.memory) return NULL;
    g->blocks = mem_grow(g->blocks, (size_t)g->n + 1, sizeof b);
    g->blocks[g->n++] = b;
    return b.at;
}

static void give(Device *d, void *p, size_t bytes) {
    Guarded *g = (Guarded *)d;
    Block *b = find(g, p, bytes);
    CHECK(b && b->at == p && b->bytes == bytes, "%zu bytes are given back that were not taken", bytes);
    munmap(b->at, bytes);
    munmap(b->memory, bytes);
    *b = g->blocks[--g->n];
}

static void copy_now(Device *d, void *to, const void *from, size_t bytes) {
    const Guarded *g = (const Guarded *)d;
    CHECK(find(g, to, bytes) || find(g, from, bytes), "neither end of a copy is memory of the device");
    memcpy(behind(g, to, bytes), behind(g, from, bytes), bytes);
}

static void copy(Device *d, void *to, const void *from, size_t bytes) {
    enum { NOT_YET = 0xEE };
    Guarded *g = (Guarded *)d;
    const bool goes_there = find_in(g->host, g->n_host, to, bytes);
    char *host = goes_there ? to : (char *)from;
    if (goes_there || find_in(g->host, g->n_host, from, bytes)) {
        const Pending p = {host, mem_alloc(bytes), bytes, goes_there};
        memcpy(p.content, behind(g, from, bytes), bytes);
        g->pending = mem_grow(g->pending, (size_t)g->n_pending + 1, sizeof p);
        g->pending[g->n_pending++] = p;
    }
    copy_now(d, to, from, bytes);
    if (goes_there) memset(host, NOT_YET, bytes);
}

static void wait(Device *d) {
    Guarded *g = (Guarded *)d;
    for (const Pending *p = g->pending; p < g->pending + g->n_pending; p++) {
        if (p->goes_there) memcpy(p->host, p->content, p->bytes);
        CHECK(!memcmp(p->host, p->content, p->bytes),
              "host memory has changed while the device may have been copying it");
        free(p->content);
    }
    g->n_pending = 0;
}

static void *take_host(Device *d, size_t bytes) {
    Guarded *g = (Guarded *)d;
    char *p = map(bytes, PROT_READ | PROT_WRITE);
    if (!p) return NULL;
    g->host = mem_grow(g->host, (size_t)g->n_host + 1, sizeof *g->host);
    g->host[g->n_host++] = (Block){p, p, bytes};
    return p;
}

static void give_host(Device *d, void *p, size_t bytes) {
    Guarded *g = (Guarded *)d;
    wait(d);
    Block *b = find_in(g->host, g->n_host, p, bytes);
    CHECK(b && b->at == p && b->bytes == bytes, "%zu bytes of the host are given back that were not taken",
          bytes);
    munmap(p, bytes);
    *b = g->host[--g->n_host];
}

static void copy_beside(Device *d, void *to, const void *from, size_t bytes, DeviceEvent *done) {
    Guarded *g = (Guarded *)d;
    const bool out = find(g, from, bytes), in = find(g, to, bytes);
    CHECK(out != in && find_in(g->host, g->n_host, out ? to : from, bytes),
          "a copy beside the kernels is not between the device and memory of device_host_alloc");
    late_add(&g->late, (LateCopy){to, from, bytes, done});
}

static void after(Device *d, DeviceEvent *e) { late_do(&((Guarded *)d)->late, e, d, copy_now); }

static size_t available(const Device *d) { return ((const Guarded *)d)->cpu->available(d); }

static void close_device(Device *d) {
    const Guarded *g = (const Guarded *)d;
    CHECK(g->n == 0 && g->n_host == 0, "%d blocks of memory are not given back", g->n + g->n_host);
    CHECK(g->late.n == 0, "nobody has waited for %d copies beside the kernels", g->late.n);
    free(g->blocks), free(g->host), free(g->late.at), free(g->pending);
}

static void touched(int number) {
    (void)number;
    fault(__FILE__, __LINE__, "host code", "the host has touched memory of the device, or none at all");
}

Err __wrap_device_open(bool cuda, int rank, int threads, Device **);
Err __wrap_device_open(bool cuda, int rank, int threads, Device **out) {
    static const DeviceBackend GUARDED = {.apart = true,
                                          .take = take,
                                          .give = give,
                                          .copy = copy,
                                          .wait = wait,
                                          .available = available,
                                          .take_host = take_host,
                                          .give_host = give_host,
                                          .event = late_event,
                                          .no_event = late_no_event,
                                          .copy_beside = copy_beside,
                                          .after = after,
                                          .close = close_device};
    CHECK(!cuda, "the guarded device is the CPU");
    Guarded *g = mem_zero(1, sizeof *g);
    Device *cpu = device_cpu(threads);
    g->device = *cpu;
    g->cpu = cpu->backend;
    g->skips = rank == 1 ? getenv("GUARDED_SKIPS") : NULL;
    g->device.backend = &GUARDED;
    free(cpu);
    signal(SIGSEGV, touched);
    *out = &g->device;
    return ERR_OK;
}

/* ---- what may touch its memory ---- */

static Tensor *operand(const Guarded *g, const OpDef *op, Tensor *t, Tensor *copy) {
    const size_t bytes = t ? tensor_extent(t) : 0;
    char text[100];
    if (!bytes) return t;
    CHECK(find(g, t->data, bytes), "op '%s' is given %s outside of the device's memory", op->name,
          tensor_describe(t, text, sizeof text));
    *copy = *t;
    copy->data = behind(g, t->data, bytes);
    return copy;
}

void __real_call_run(const OpDef *, const Call *);
void __wrap_call_run(const OpDef *, const Call *);
void __wrap_call_run(const OpDef *op, const Call *c) {
    if (!device_is_discrete(c->device)) {
        __real_call_run(op, c);
        return;
    }
    const Guarded *g = (const Guarded *)c->device;
    if (g->skips && !strcmp(g->skips, op->name)) return;
    Tensor in[CALL_IN], out[CALL_OUT];
    Call real = *c;
    for (int i = 0; i < CALL_IN; i++) real.in[i] = operand(g, op, c->in[i], &in[i]);
    for (int i = 0; i < CALL_OUT; i++) real.out[i] = operand(g, op, c->out[i], &out[i]);
    __real_call_run(op, &real);
}
