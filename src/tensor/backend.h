/* The functions that implement a kind of device (devices.def). Only device.c, call.c, space.c and the
 * backends include this file. */
#pragma once

#include "tensor/call.h"
#include "tensor/device.h"

typedef struct DeviceBackend {
    bool discrete;                             /* device_is_discrete */
    Err (*open)(const DeviceSpec *, Device *); /* fills in `state` and `n_devices` */
    void (*close)(Device *);                   /* NULL: no-op */
    /* Ops (call.h). `plan` is NULL if no op needs a plan, and `path` is NULL if all kernels are our own. */
    void (*run)(const OpDef *, const Call *);
    size_t (*plan)(const OpDef *, const Call *);
    const char *(*path)(const OpDef *, const Call *);
    unsigned (*fp8_gemms)(const Device *); /* NULL: none */
    /* Memory. */
    void *(*alloc)(Device *, size_t bytes);                           /* zeroed; NULL if memory is
                                                                         exhausted */
    void (*free)(Device *, void *, size_t bytes);                     /* NULL: no-op */
    void (*copy)(Device *, void *to, const void *from, size_t bytes); /* either may be in host memory */
    void (*wait)(Device *);                                           /* NULL: no-op */
    size_t (*available)(const Device *);
    size_t (*memory)(const Device *);                         /* total; NULL: the machine's */
    void (*describe)(const Device *, char *buffer, size_t n); /* NULL: describes the CPU */
    void (*reserve_scratch)(Device *, size_t bytes);          /* NULL: no-op */
    /* Graphs. All four are NULL if graphs are not supported. */
    void (*graph_begin)(Device *);
    DeviceGraph *(*graph_end)(Device *);
    void (*graph_launch)(Device *, DeviceGraph *);
    void (*graph_free)(Device *, DeviceGraph *);
    /* Host memory that async copies read and write, not zeroed. NULL: plain memory. */
    void *(*host_alloc)(Device *, size_t bytes);
    void (*host_free)(Device *, void *, size_t bytes);
    /* Events. All four are NULL if there are none. */
    DeviceEvent *(*event_new)(Device *);
    void (*event_free)(Device *, DeviceEvent *);
    void (*wait_event)(Device *, DeviceEvent *);
    bool (*event_happened)(Device *, DeviceEvent *);
    /* NULL: copies are synchronous. */
    void (*copy_async)(Device *, void *to, const void *from, size_t bytes, DeviceEvent *done);
    /* Streams. All five are NULL if there are none. */
    DeviceStream *(*stream_new)(Device *);
    void (*stream_free)(Device *, DeviceStream *);
    void *(*stream_handle)(DeviceStream *);
    void (*stream_follow)(Device *, DeviceStream *);
    void (*stream_record)(Device *, DeviceStream *, DeviceEvent *);
    /* Times of spans. NULL: the host's clock. */
    void (*span_begin)(Device *, DeviceStream *);
    void (*span_end)(Device *, DeviceStream *, OpProfile *);
    /* Reserved address space. All three are NULL if `alloc` itself only reserves addresses. `commit` backs at
     * least the bytes [from, to) with memory, as far as memory is available, and returns the number of bytes
     * added. */
    void *(*reserve)(Device *, size_t bytes);
    size_t (*commit)(Device *, char *base, size_t from, size_t to);
    void (*unreserve)(Device *, char *base, size_t bytes, size_t committed);
} DeviceBackend;

/* Counts bytes as allocated. */
void device_count(Device *, size_t bytes);

#define DEVICE(constant, name) extern const DeviceBackend device_##name##_backend;
#include "tensor/devices.def"
