/* What a kind of device is (devices.def): its functions. Only device.c, call.c, space.c and the kinds
 * themselves see this. */
#ifndef ISOTRON_TENSOR_BACKEND_H
#define ISOTRON_TENSOR_BACKEND_H

#include "tensor/call.h"
#include "tensor/device.h"

typedef struct DeviceBackend {
    bool discrete;                             /* device_is_discrete */
    Err (*open)(const DeviceSpec *, Device *); /* fills in `state` and `n_devices` */
    void (*close)(Device *);                   /* NULL: nothing to do */
    /* Ops (call.h). NULL: no op needs a plan; every op has kernels of our own. */
    void (*run)(const OpDef *, const Call *);
    size_t (*plan)(const OpDef *, const Call *);
    const char *(*path)(const OpDef *, const Call *);
    unsigned (*fp8_gemms)(const Device *); /* NULL: there are none */
    /* Memory. */
    void *(*alloc)(Device *, size_t bytes);                           /* zeroed; NULL: there is not enough */
    void (*free)(Device *, void *, size_t bytes);                     /* NULL: nothing to do */
    void (*copy)(Device *, void *to, const void *from, size_t bytes); /* either may be the host's */
    void (*wait)(Device *);                                           /* NULL: nothing to wait for */
    size_t (*available)(const Device *);
    size_t (*memory)(const Device *);                         /* in all; NULL: the machine's */
    void (*describe)(const Device *, char *buffer, size_t n); /* NULL: it is the CPU */
    void (*reserve_scratch)(Device *, size_t bytes);          /* NULL: nothing to do */
    /* Graphs. NULL, all four: there are none. */
    void (*graph_begin)(Device *);
    DeviceGraph *(*graph_end)(Device *);
    void (*graph_launch)(Device *, DeviceGraph *);
    void (*graph_free)(Device *, DeviceGraph *);
    /* Host memory that async copies read and write, not zeroed. NULL: plain memory serves. */
    void *(*host_alloc)(Device *, size_t bytes);
    void (*host_free)(Device *, void *, size_t bytes);
    /* Async copies. NULL, all four: copies are done at once, and there are no events. */
    DeviceEvent *(*event_new)(Device *);
    void (*event_free)(Device *, DeviceEvent *);
    void (*copy_async)(Device *, void *to, const void *from, size_t bytes, DeviceEvent *done);
    void (*wait_event)(Device *, DeviceEvent *);
    /* Address space whose memory comes later. NULL, all three: `alloc` is that already. commit gives memory
     * to the bytes between `from` and at least `to`, as long as there is any. It returns how many bytes it
     * gave. */
    void *(*reserve)(Device *, size_t bytes);
    size_t (*commit)(Device *, char *base, size_t from, size_t to);
    void (*unreserve)(Device *, char *base, size_t bytes, size_t committed);
} DeviceBackend;

#define DEVICE(constant, name) extern const DeviceBackend device_##name##_backend;
#include "tensor/devices.def"

#endif
