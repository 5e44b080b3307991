/* The null device has neither memory nor kernels. If the null device has a target, it creates the plans of
 * the target's ops. */
#include "base/mem.h"
#include "tensor/backend.h"

static void null_run(const OpDef *op, const Call *c) {
    Device *d = c->device;
    const size_t bytes = d->target && d->target->backend->plan ? d->target->backend->plan(op, c) : 0;
    if (bytes > d->scratch) d->scratch = bytes;
    if (d->observer) d->observer(d->observer_arg, op, c);
}

static void null_wait(Device *d) {
    if (d->observer) d->observer(d->observer_arg, NULL, NULL);
}

static const char *null_path(const OpDef *op, const Call *c) {
    const Device *target = c->device->target;
    return target && target->backend->path ? target->backend->path(op, c) : NULL;
}

static unsigned null_fp8_gemms(const Device *d) { return d->target ? device_fp8_gemms(d->target) : 0; }

/* Returns an address that is never mapped and is not NULL. */
static void *null_alloc(Device *d, size_t bytes) {
    (void)d, (void)bytes;
    return (void *)(uintptr_t)SPACE_ALIGN;
}

const DeviceBackend device_null_backend = {
    .run = null_run, .wait = null_wait, .path = null_path, .fp8_gemms = null_fp8_gemms, .alloc = null_alloc};

Device *device_null(void) {
    Device *d = mem_zero(1, sizeof *d);
    *d = (Device){.kind = DEVICE_NULL, .backend = &device_null_backend, .n_devices = 1};
    return d;
}

Device *device_null_for(const Device *target) {
    Device *d = device_null();
    d->target = target, d->any_order = target->any_order;
    return d;
}
