/* The CPU backend. The memory of this device is host memory. An op is complete when call_run returns. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/host_memory.h"
#include "base/host_stream.h"
#include "base/mem.h"
#include "tensor/backend.h"

/* ---- ops ---- */

static const Tensor *first_float(const Call *c) {
    for (int i = 0; i < CALL_IN; i++)
        if (c->in[i] && dtype_is_float((DType)c->in[i]->dtype)) return c->in[i];
    for (int i = 0; i < CALL_OUT; i++)
        if (c->out[i] && dtype_is_float((DType)c->out[i]->dtype)) return c->out[i];
    return NULL;
}

static void convert_rows(Tensor *dst, const Tensor *src) {
    size_t width = (size_t)tensor_width(src);
    for (int64_t r = 0, rows = tensor_rows(src); r < rows; r++)
        dtype_convert(tensor_at(dst, tensor_row_offset(dst, r)), (DType)dst->dtype,
                      tensor_at(src, tensor_row_offset(src, r)), (DType)src->dtype, width);
}

static Tensor *widen(const OpOperand *o, Tensor *t, Tensor *copy, bool load) {
    if (!t || o->stored || !dtype_is_16bit((DType)t->dtype)) return t;
    *copy = tensor_make(mem_aligned((size_t)tensor_count(t) * sizeof(float)), F32, t->ndim, t->dim);
    copy->flags = t->flags;
    if (load) convert_rows(copy, t);
    return copy;
}

static void run_f32(const OpDef *op, const Call *c, DType lead) {
    Call wide = *c;
    Tensor in[CALL_IN], out[CALL_OUT];
    for (int i = 0; i < CALL_IN; i++) wide.in[i] = widen(&op->in[i], c->in[i], &in[i], true);
    for (int i = 0; i < CALL_OUT; i++)
        wide.out[i] = widen(&op->out[i], c->out[i], &out[i], c->out[i] && c->out[i]->flags & TENSOR_ACCUM);
    wide.stored = c->out[0] ? (DType)c->out[0]->dtype : lead;
    op->cpu_f32(&wide);
    for (int i = 0; i < CALL_OUT; i++) {
        if (wide.out[i] == c->out[i]) continue;
        convert_rows(c->out[i], wide.out[i]);
        free(wide.out[i]->data);
    }
    for (int i = 0; i < CALL_IN; i++)
        if (wide.in[i] != c->in[i]) free(wide.in[i]->data);
}

static void cpu_run(const OpDef *op, const Call *c) {
    const Tensor *lead = first_float(c);
    OpProfile *profile = c->device->profile ? &c->device->profile[op->number] : NULL;
    const int64_t start = profile ? clock_ns() : 0;
    if (!lead || lead->dtype == F64)
        op->cpu_f64(c);
    else
        run_f32(op, c, (DType)lead->dtype);
    if (profile) profile->calls++, profile->ns += clock_ns() - start;
}

/* ---- memory ---- */

/* The operating system allocates each page when it is first touched. */
static void *cpu_alloc(Device *d, size_t bytes) {
    (void)d;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static void cpu_free(Device *d, void *p, size_t bytes) {
    (void)d;
    munmap(p, bytes);
}

static void cpu_copy(Device *d, void *to, const void *from, size_t bytes) {
    (void)d;
    memcpy(to, from, bytes);
}

static size_t cpu_available(const Device *d) {
    (void)d;
    return host_memory_available("");
}

/* ---- events and streams: all calls are synchronous, so the host waits only for streams ---- */

struct DeviceEvent {
    HostStream *stream; /* NULL if the event has not been recorded */
    int64_t position;
};

static DeviceEvent *cpu_event_new(Device *d) {
    (void)d;
    return mem_zero(1, sizeof(DeviceEvent));
}

static void cpu_event_free(Device *d, DeviceEvent *e) {
    (void)d;
    free(e);
}

static void cpu_wait_event(Device *d, DeviceEvent *e) {
    (void)d;
    if (e->stream) host_stream_wait(e->stream, e->position);
}

static bool cpu_event_happened(Device *d, DeviceEvent *e) {
    (void)d;
    return !e->stream || host_stream_passed(e->stream, e->position);
}

static DeviceStream *cpu_stream_new(Device *d) {
    (void)d;
    return (DeviceStream *)host_stream_new();
}

static void cpu_stream_free(Device *d, DeviceStream *s) {
    (void)d;
    host_stream_free((HostStream *)s);
}

static void *cpu_stream_handle(DeviceStream *s) { return s; }

static void cpu_stream_follow(Device *d, DeviceStream *s) { (void)d, (void)s; }

static void cpu_stream_record(Device *d, DeviceStream *s, DeviceEvent *e) {
    (void)d;
    e->stream = (HostStream *)s;
    e->position = host_stream_end(e->stream);
}

/* ---- the device ---- */

typedef struct Cpu {
    unsigned fp8_gemms;
} Cpu;

static Err cpu_open(const DeviceSpec *spec, Device *d) {
    Cpu *cpu = d->state = mem_zero(1, sizeof *cpu);
    cpu->fp8_gemms = spec->fp8_gemms;
    return ERR_OK;
}

static void cpu_close(Device *d) { free(d->state); }

static unsigned cpu_fp8_gemms(const Device *d) { return ((const Cpu *)d->state)->fp8_gemms; }

const DeviceBackend device_cpu_backend = {.open = cpu_open,
                                          .close = cpu_close,
                                          .run = cpu_run,
                                          .fp8_gemms = cpu_fp8_gemms,
                                          .alloc = cpu_alloc,
                                          .free = cpu_free,
                                          .copy = cpu_copy,
                                          .available = cpu_available,
                                          .event_new = cpu_event_new,
                                          .event_free = cpu_event_free,
                                          .wait_event = cpu_wait_event,
                                          .event_happened = cpu_event_happened,
                                          .stream_new = cpu_stream_new,
                                          .stream_free = cpu_stream_free,
                                          .stream_handle = cpu_stream_handle,
                                          .stream_follow = cpu_stream_follow,
                                          .stream_record = cpu_stream_record};
