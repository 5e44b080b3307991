/* Equal pieces of device memory that buckets are gathered into for a while. A new piece is taken only when
 * none is free, so that what is taken depends on the order of the calls alone: a dry run takes as much as the
 * run. */
#ifndef ISOTRON_PARAM_SLOTS_H
#define ISOTRON_PARAM_SLOTS_H

#include <stdbool.h>

#include "tensor/device.h"

typedef struct Slots {
    Device *device;
    const char *what; /* for messages */
    size_t bytes;     /* of each */
    void **free_ones;
    int taken, n_free;
} Slots;

/* Whether slots_take gives one without taking more memory, or fewer than `enough` exist. */
bool slots_can_take(const Slots *, int enough);
void *slots_take(Slots *);
void slots_give(Slots *, void *);
/* All must have been given back. */
void slots_free(Slots *);

#endif
