/* What a kind of device is to device.c and call.c; nobody else sees it. */
#ifndef ISOTRON_TENSOR_BACKEND_H
#define ISOTRON_TENSOR_BACKEND_H

#include "tensor/device.h"

typedef struct DeviceBackend {
    bool apart;                                                       /* device_is_discrete */
    void *(*take)(Device *, size_t bytes);                            /* zeroed; NULL: there is not enough */
    void (*give)(Device *, void *, size_t bytes);                     /* NULL: nothing to do */
    void (*copy)(Device *, void *to, const void *from, size_t bytes); /* either may be the host's */
    void (*wait)(Device *);                                           /* NULL: nothing to wait for */
    size_t (*available)(const Device *);
    size_t (*memory)(const Device *);                         /* in all; NULL: the machine's */
    void (*describe)(const Device *, char *buffer, size_t n); /* NULL: it is the CPU */
    void (*provide)(Device *, size_t scratch);                /* NULL: nothing to do */
    void (*record)(Device *);                                 /* graphs; NULL: there are none */
    DeviceGraph *(*recorded)(Device *);
    void (*play)(Device *, DeviceGraph *);
    void (*forget)(Device *, DeviceGraph *);
    /* Around every op: names it to profilers, and times it if there is a profile. NULL: the CPU's clock does.
     */
    void (*begin)(Device *, const char *op);
    void (*end)(Device *, int op);
    void (*close)(Device *); /* NULL: nothing to do */
    /* Host memory that copies reach while kernels run, not zeroed; NULL: plain memory is that. */
    void *(*take_host)(Device *, size_t bytes);
    void (*give_host)(Device *, void *, size_t bytes);
    /* Copies beside the kernels; NULL, all four: they are done at once, and there are no events. */
    DeviceEvent *(*event)(Device *);
    void (*no_event)(Device *, DeviceEvent *);
    void (*copy_beside)(Device *, void *to, const void *from, size_t bytes, DeviceEvent *done);
    void (*after)(Device *, DeviceEvent *);
    /* Address space whose memory comes later; NULL: `take` is that already. back gives memory to what lies
     * between `from` and at least `to`, as long as there is any, and returns to how many bytes. */
    void *(*reserve)(Device *, size_t bytes);
    size_t (*back)(Device *, char *base, size_t from, size_t to);
    void (*unreserve)(Device *, char *base, size_t bytes, size_t backed);
} DeviceBackend;
Err device_cuda(int rank, Device **); /* tensor/cuda.c */

#endif
