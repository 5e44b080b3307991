/* Async copies of a device that delays them as long as possible, until something waits for them. Include this header in
 * only one file of a program. The program's devices must have no other events. */
#pragma once

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "tensor/device.h"

struct DeviceEvent {
    char unused;
};

typedef struct LateCopy {
    void *to;
    const void *from;
    size_t bytes;
    const DeviceEvent *done;
} LateCopy;

/* A zeroed struct is empty. The owner frees `at`. */
typedef struct LateCopies {
    LateCopy *at;
    int n;
} LateCopies;

static DeviceEvent *late_event_new(Device *d) {
    (void)d;
    return mem_zero(1, sizeof(DeviceEvent));
}

static void late_event_free(Device *d, DeviceEvent *e) {
    (void)d;
    free(e);
}

static void late_add(LateCopies *l, LateCopy c) {
    l->at = mem_grow(l->at, (size_t)l->n + 1, sizeof *l->at);
    l->at[l->n++] = c;
}

/* Runs the copies in their order, up to the last one with that event. */
static void late_do(LateCopies *l, const DeviceEvent *e, Device *d,
                    void copy(Device *, void *to, const void *from, size_t bytes)) {
    int n = l->n;
    while (n > 0 && l->at[n - 1].done != e) n--;
    for (const LateCopy *c = l->at; c < l->at + n; c++) copy(d, c->to, c->from, c->bytes);
    memmove(l->at, l->at + n, (size_t)(l->n - n) * sizeof *l->at);
    l->n -= n;
}
