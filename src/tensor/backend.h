/* The functions that implement a kind of device (devices.def). Only device.c, call.c, space.c and the
 * backends include this file. */
#pragma once

#include "tensor/call.h"
#include "tensor/device.h"

typedef struct DeviceBackend {
    bool discrete;                             /* the result of device_is_discrete */
    Err (*open)(const DeviceSpec *, Device *); /* sets `state` and `n_devices` */
    void (*close)(Device *);                   /* NULL if there is nothing to do */
    /* Ops (call.h). `plan` is NULL if no op needs a plan. `path` is NULL if each op has only one implementation. */
    void (*run)(const OpDef *, const Call *);
    size_t (*plan)(const OpDef *, const Call *);
    const char *(*path)(const OpDef *, const Call *);
    unsigned (*fp8_gemms)(const Device *); /* NULL if there are no FP8 GEMMs */
    /* Device memory. */
    /* returns zeroed memory, or NULL if memory is exhausted */
    void *(*alloc)(Device *, size_t bytes);
    void (*free)(Device *, void *, size_t bytes); /* NULL if there is nothing to do */
    /* `to` and `from` may be in host memory */
    void (*copy)(Device *, void *to, const void *from, size_t bytes);
    void (*wait)(Device *); /* NULL if there is nothing to do */
    size_t (*available)(const Device *);
    /* returns the device's total memory; NULL if the device uses the machine's memory */
    size_t (*memory)(const Device *);
    void (*describe)(const Device *, char *buffer, size_t n); /* NULL for the CPU */
    void (*reserve_scratch)(Device *, size_t bytes);          /* NULL if there is nothing to do */
    /* Functions for graphs; all are NULL if graphs are not supported. */
    void (*graph_begin)(Device *);
    DeviceGraph *(*graph_end)(Device *);
    void (*graph_launch)(Device *, DeviceGraph *);
    void (*graph_free)(Device *, DeviceGraph *);
    /* Host memory that async copies read and write. The memory is not zeroed. NULL if ordinary host memory
     * can be used. */
    void *(*host_alloc)(Device *, size_t bytes);
    void (*host_free)(Device *, void *, size_t bytes);
    /* Functions for events; all are NULL if events are not supported. */
    DeviceEvent *(*event_new)(Device *);
    void (*event_free)(Device *, DeviceEvent *);
    void (*wait_event)(Device *, DeviceEvent *);
    bool (*event_happened)(Device *, DeviceEvent *);
    /* NULL if copies are synchronous. */
    void (*copy_async)(Device *, void *to, const void *from, size_t bytes, DeviceEvent *done);
    /* Functions for streams; all are NULL if streams are not supported. */
    DeviceStream *(*stream_new)(Device *);
    void (*stream_free)(Device *, DeviceStream *);
    void *(*stream_handle)(DeviceStream *);
    void (*stream_follow)(Device *, DeviceStream *);
    void (*stream_record)(Device *, DeviceStream *, DeviceEvent *);
    /* Functions that measure spans; both are NULL if the host's clock is used instead. */
    void (*span_begin)(Device *, DeviceStream *);
    void (*span_end)(Device *, DeviceStream *, OpProfile *);
    /* Functions for reserved address space; all are NULL if `alloc` only reserves addresses. `commit` allocates memory
     * for at least the bytes [from, to), if enough memory is available, and returns the number of bytes added. */
    void *(*reserve)(Device *, size_t bytes);
    size_t (*commit)(Device *, char *base, size_t from, size_t to);
    void (*unreserve)(Device *, char *base, size_t bytes, size_t committed);
} DeviceBackend;

/* Adds the bytes to the device's count of allocated bytes. */
void device_count(Device *, size_t bytes);

#define DEVICE(constant, name) extern const DeviceBackend device_##name##_backend;
#include "tensor/devices.def"
