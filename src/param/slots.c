#include "param/slots.h"

#include <stdlib.h>

#include "base/mem.h"

bool slots_can_take(const Slots *s, int enough) { return s->n_free > 0 || s->taken < enough; }

void *slots_take(Slots *s) {
    if (s->n_free) return s->free_ones[--s->n_free];
    s->free_ones = mem_grow(s->free_ones, (size_t)++s->taken, sizeof *s->free_ones);
    return device_alloc(s->device, s->bytes, s->what);
}

void slots_give(Slots *s, void *slot) { s->free_ones[s->n_free++] = slot; }

void slots_free(Slots *s) {
    while (s->n_free) device_release(s->device, s->free_ones[--s->n_free], s->bytes);
    free(s->free_ones);
}
