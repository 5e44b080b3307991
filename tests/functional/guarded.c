/* A build of the program that runs the CPU's kernels on a device whose memory the host cannot access, like a GPU's.
 * Addresses of this device are inaccessible pages; only kernels and the device's copies get the real memory. The
 * program therefore crashes in these cases: host code accesses device memory without a view, an op gets host memory that
 * is not pinned, or an op accesses memory outside its operands.
 *
 * Asynchronous copies are executed as late as possible, so that code that does not wait for them finds the
 * old content. A stream-ordered copy from pinned host memory reads it only at the next wait, and a copy to
 * such memory arrives only then. The program itself needs no hook, because device_open is replaced with ld
 * --wrap.
 *
 * GUARDED_SKIPS=op: rank 1 of a layout skips that op. The search for the first wrong op must find this bug. */
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
    char *at, *memory; /* `at`: addresses that the host sees; `memory`: the memory behind them */
    size_t bytes;
} Block;

/* A stream-ordered copy between the device and memory of device_host_alloc. The copy is pending until the next wait. */
typedef struct Pending {
    char *host, *content; /* content: what was copied from `host`, or will be written there */
    size_t bytes;
    bool goes_there;
} Pending;

typedef struct Guarded {
    Device device; /* first: device_free frees it */
    const DeviceBackend *cpu;
    const char *skips;    /* NULL: no op */
    Block *blocks, *host; /* blocks: of the device; host: pinned host memory, where at == memory */
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

/* Whether a kernel may access the memory: the device's memory, or pinned host memory. */
static bool is_known(const Guarded *g, const void *p, size_t bytes) {
    return find(g, p, bytes) || find_in(g->host, g->n_host, p, bytes);
}

/* The real memory behind a device address; host addresses are returned unchanged. */
static void *behind(const Guarded *g, const void *p, size_t bytes) {
    const Block *b = find(g, p, bytes);
    return b ? b->memory + ((const char *)p - b->at) : (void *)p;
}

/* ---- the device ---- */

static void *map(size_t bytes, int protection) {
    void *p = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static void *guarded_alloc(Device *d, size_t bytes) {
    Guarded *g = (Guarded *)d;
    const Block b = {map(bytes, PROT_NONE), map(bytes, PROT_READ | PROT_WRITE), bytes};
    if (!b.at || !b.memory) return NULL;
    g->blocks = mem_grow(g->blocks, (size_t)g->n + 1, sizeof b);
    g->blocks[g->n++] = b;
    return b.at;
}

static void guarded_free(Device *d, void *p, size_t bytes) {
    Guarded *g = (Guarded *)d;
    Block *b = find(g, p, bytes);
    CHECK(b && b->at == p && b->bytes == bytes, "%zu bytes are freed that were not allocated", bytes);
    munmap(b->at, bytes);
    munmap(b->memory, bytes);
    *b = g->blocks[--g->n];
}

static void copy_now(Device *d, void *to, const void *from, size_t bytes) {
    const Guarded *g = (const Guarded *)d;
    CHECK(is_known(g, to, bytes) || is_known(g, from, bytes),
          "neither end of a copy is memory of the device");
    memcpy(behind(g, to, bytes), behind(g, from, bytes), bytes);
}

static void guarded_copy(Device *d, void *to, const void *from, size_t bytes) {
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

static void guarded_wait(Device *d) {
    Guarded *g = (Guarded *)d;
    for (const Pending *p = g->pending; p < g->pending + g->n_pending; p++) {
        if (p->goes_there) memcpy(p->host, p->content, p->bytes);
        CHECK(!memcmp(p->host, p->content, p->bytes),
              "host memory has changed while the device may have been copying it");
        free(p->content);
    }
    g->n_pending = 0;
}

static void *guarded_host_alloc(Device *d, size_t bytes) {
    Guarded *g = (Guarded *)d;
    char *p = map(bytes, PROT_READ | PROT_WRITE);
    if (!p) return NULL;
    g->host = mem_grow(g->host, (size_t)g->n_host + 1, sizeof *g->host);
    g->host[g->n_host++] = (Block){p, p, bytes};
    return p;
}

static void guarded_host_free(Device *d, void *p, size_t bytes) {
    Guarded *g = (Guarded *)d;
    guarded_wait(d);
    Block *b = find_in(g->host, g->n_host, p, bytes);
    CHECK(b && b->at == p && b->bytes == bytes, "%zu bytes of the host are freed that were not allocated",
          bytes);
    munmap(p, bytes);
    *b = g->host[--g->n_host];
}

static void guarded_copy_async(Device *d, void *to, const void *from, size_t bytes, DeviceEvent *done) {
    Guarded *g = (Guarded *)d;
    const bool out = find(g, from, bytes), in = find(g, to, bytes);
    CHECK(out != in && find_in(g->host, g->n_host, out ? to : from, bytes),
          "an async copy is not between the device and memory of device_host_alloc");
    late_add(&g->late, (LateCopy){to, from, bytes, done});
}

static void guarded_wait_event(Device *d, DeviceEvent *e) { late_do(&((Guarded *)d)->late, e, d, copy_now); }

static size_t guarded_available(const Device *d) { return ((const Guarded *)d)->cpu->available(d); }

static void guarded_close(Device *d) {
    const Guarded *g = (const Guarded *)d;
    CHECK(g->n == 0 && g->n_host == 0, "%d blocks of memory are not freed", g->n + g->n_host);
    CHECK(g->late.n == 0, "nobody has waited for %d async copies", g->late.n);
    free(g->blocks), free(g->host), free(g->late.at), free(g->pending);
    g->cpu->close(d);
}

static void touched(int number) {
    (void)number;
    fault(__FILE__, __LINE__, "host code", "the host has touched memory of the device, or none at all");
}

/* ---- operations that may access device memory ---- */

static Tensor *operand(const Guarded *g, const OpDef *op, Tensor *t, Tensor *copy) {
    const size_t bytes = t ? tensor_extent(t) : 0;
    char text[100];
    if (!bytes) return t;
    char *lowest = tensor_lowest(t);
    CHECK(is_known(g, lowest, bytes), "op '%s' is given %s outside of the device's memory", op->name,
          tensor_describe(t, text, sizeof text));
    *copy = *t;
    copy->data = (char *)behind(g, lowest, bytes) + ((char *)t->data - lowest);
    return copy;
}

static void guarded_run(const OpDef *op, const Call *c) {
    const Guarded *g = (const Guarded *)c->device;
    if (g->skips && !strcmp(g->skips, op->name)) return;
    Tensor in[CALL_IN], out[CALL_OUT];
    Call real = *c;
    for (int i = 0; i < CALL_IN; i++) real.in[i] = operand(g, op, c->in[i], &in[i]);
    for (int i = 0; i < CALL_OUT; i++) real.out[i] = operand(g, op, c->out[i], &out[i]);
    g->cpu->run(op, &real);
}

/* ---- opening it ---- */

Err __wrap_device_open(const DeviceSpec *, Device **);
Err __wrap_device_open(const DeviceSpec *spec, Device **out) {
    static const DeviceBackend GUARDED = {.discrete = true,
                                          .close = guarded_close,
                                          .run = guarded_run,
                                          .alloc = guarded_alloc,
                                          .free = guarded_free,
                                          .copy = guarded_copy,
                                          .wait = guarded_wait,
                                          .available = guarded_available,
                                          .host_alloc = guarded_host_alloc,
                                          .host_free = guarded_host_free,
                                          .event_new = late_event_new,
                                          .event_free = late_event_free,
                                          .copy_async = guarded_copy_async,
                                          .wait_event = guarded_wait_event};
    CHECK(spec->kind == DEVICE_CPU, "the guarded device is the CPU");
    Guarded *g = mem_zero(1, sizeof *g);
    Device *cpu = device_cpu(spec->threads);
    g->device = *cpu;
    g->cpu = cpu->backend;
    g->skips = spec->rank == 1 ? getenv("GUARDED_SKIPS") : NULL;
    g->device.backend = &GUARDED;
    free(cpu);
    signal(SIGSEGV, touched);
    *out = &g->device;
    return ERR_OK;
}
