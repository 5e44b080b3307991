#include "tensor/device.h"

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/amount.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/machine.h"
#include "base/mem.h"
#include "base/str.h"
#include "tensor/backend.h"

/* ---- kinds ---- */

static const DeviceBackend *const BACKENDS[] = {
#define DEVICE(constant, name)        [DEVICE_##constant] = &device_##name##_backend,
#define DEVICE_ABSENT(constant, name) [DEVICE_##constant] = NULL,
#include "tensor/devices.def"
};

static Err refuse_absent(DeviceKind kind) {
    static const struct {
        const char *title, *name;
    } KINDS[] = {
#define DEVICE(constant, name)        [DEVICE_##constant] = {#constant, #name},
#define DEVICE_ABSENT(constant, name) DEVICE(constant, name)
#include "tensor/devices.def"
    };
    const char *name = KINDS[kind].name;
    return err_user(
        "--device %s: this program was built without %s; build the preset '%s', or remove --device", name,
        KINDS[kind].title, name);
}

Err device_open(const DeviceSpec *spec, Device **out) {
    const DeviceBackend *backend = BACKENDS[spec->kind];
    *out = NULL;
    if (!backend) return refuse_absent(spec->kind);
    Device *d = mem_zero(1, sizeof *d);
    *d = (Device){.kind = spec->kind, .backend = backend, .any_order = spec->any_order, .n_devices = 1};
    const Err e = backend->open ? backend->open(spec, d) : ERR_OK;
    if (e.code) {
        free(d);
        return e;
    }
    d->pool = pool_new(spec->threads > 0 ? spec->threads : machine_threads());
    *out = d;
    return ERR_OK;
}

Device *device_cpu(int threads) {
    Device *d;
    const Err e = device_open(&(DeviceSpec){.kind = DEVICE_CPU, .threads = threads}, &d);
    CHECK(!e.code, "%s", e.msg);
    return d;
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
        snprintf(buffer, n, "CPU (%s)", amount(pool_threads(d->pool), "thread").s);
    return buffer;
}

void device_reserve_scratch(Device *d, size_t bytes) {
    if (d->backend->reserve_scratch) d->backend->reserve_scratch(d, bytes);
}

size_t device_memory_available(const Device *d) { return d->backend->available(d); }

unsigned device_fp8_gemms(const Device *d) { return d->backend->fp8_gemms ? d->backend->fp8_gemms(d) : 0; }

bool device_is_discrete(const Device *d) { return d && d->backend->discrete; }

static size_t at_least_one(size_t bytes) { return bytes ? bytes : 1; }

void device_count(Device *d, size_t bytes) {
    d->allocated += bytes;
    if (d->allocated > d->most_allocated) d->most_allocated = d->allocated;
}

void *device_alloc(Device *d, size_t bytes, const char *what) {
    void *p = d->backend->alloc(d, at_least_one(bytes));
    CHECK(p, "cannot allocate %s for %s", bytes_text((double)bytes).s, what);
    device_count(d, bytes);
    return p;
}

void device_release(Device *d, void *p, size_t bytes) {
    if (p) d->allocated -= bytes;
    if (p && d->backend->free) d->backend->free(d, p, at_least_one(bytes));
}

void *device_host_alloc(Device *d, size_t bytes, const char *what) {
    bytes = at_least_one(bytes);
    void *p = (d->backend->host_alloc ? d->backend->host_alloc : device_cpu_backend.alloc)(d, bytes);
    CHECK(p, "cannot allocate %s of host memory for %s", bytes_text((double)bytes).s, what);
    return p;
}

void device_host_release(Device *d, void *p, size_t bytes) {
    if (!p) return;
    (d->backend->host_free ? d->backend->host_free : device_cpu_backend.free)(d, p, at_least_one(bytes));
}

void device_wait(Device *d) {
    if (d->backend->wait) d->backend->wait(d);
}

void device_copy(Device *d, void *to, const void *from, size_t bytes) {
    if (bytes && d->backend->copy) d->backend->copy(d, to, from, bytes);
}

DeviceEvent *device_event_new(Device *d) { return d->backend->event_new ? d->backend->event_new(d) : NULL; }

void device_event_free(Device *d, DeviceEvent *e) {
    if (e) d->backend->event_free(d, e);
}

void device_copy_async(Device *d, void *to, const void *from, size_t bytes, DeviceEvent *done) {
    if (d->backend->copy_async)
        d->backend->copy_async(d, to, from, bytes, done);
    else
        device_copy(d, to, from, bytes);
}

void device_wait_event(Device *d, DeviceEvent *e) {
    if (d->backend->wait_event) d->backend->wait_event(d, e);
}

void device_finish_event(Device *d, DeviceEvent *e) {
    if (!d->backend->copy_async) return;
    device_wait_event(d, e);
    while (d->backend->event_happened && !d->backend->event_happened(d, e)) sched_yield();
}

bool device_event_happened(Device *d, DeviceEvent *e) { return d->backend->event_happened(d, e); }

DeviceStream *device_stream_new(Device *d) {
    return d->backend->stream_new ? d->backend->stream_new(d) : NULL;
}

void device_stream_free(Device *d, DeviceStream *s) {
    if (s) d->backend->stream_free(d, s);
}

void *device_stream_handle(Device *d, DeviceStream *s) { return d->backend->stream_handle(s); }
void device_stream_follow(Device *d, DeviceStream *s) { d->backend->stream_follow(d, s); }
void device_stream_record(Device *d, DeviceStream *s, DeviceEvent *e) { d->backend->stream_record(d, s, e); }

int64_t device_span_begin(Device *d, DeviceStream *s) {
    if (d->backend->span_begin) d->backend->span_begin(d, s);
    return d->backend->span_begin ? 0 : clock_ns();
}

void device_span_end(Device *d, DeviceStream *s, int64_t begin, OpProfile *to) {
    if (d->backend->span_end)
        d->backend->span_end(d, s, to);
    else
        to->calls++, to->ns += clock_ns() - begin;
}

bool device_is_recording(const Device *d) { return d->recording; }

bool device_has_graphs(const Device *d) { return d->backend->graph_begin != NULL; }

void device_graph_begin(Device *d) {
    CHECK(device_has_graphs(d), "this device does not support graphs");
    d->backend->graph_begin(d);
    d->recording = true;
}

DeviceGraph *device_graph_end(Device *d) {
    d->recording = false;
    return d->backend->graph_end(d);
}

void device_graph_launch(Device *d, DeviceGraph *g) {
    d->backend->graph_launch(d, g);
    d->graph_replays++;
}

void device_graph_free(Device *d, DeviceGraph *g) {
    if (g) d->backend->graph_free(d, g);
}

void device_replay(Device *d, DeviceRecording *r, void (*work)(void *arg), void *arg) {
    if (!r->warm) {
        work(arg);
        r->warm = true;
        return;
    }
    if (!r->graph) {
        device_graph_begin(d);
        work(arg);
        r->graph = device_graph_end(d);
    }
    device_graph_launch(d, r->graph);
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
