#include "param/bucket_pool.h"

#include <stdlib.h>

#include "base/mem.h"

bool bucket_pool_can_take(const BucketPool *s, int enough) { return s->n_free > 0 || s->taken < enough; }

void *bucket_pool_take(BucketPool *s) {
    if (s->n_free) return s->free_ones[--s->n_free];
    s->free_ones = mem_grow(s->free_ones, (size_t)++s->taken, sizeof *s->free_ones);
    void *block = device_alloc(s->registry->device, s->bytes, s->what);
    buckets_register(s->registry, s->comm, block, s->bytes);
    return block;
}

void bucket_pool_give(BucketPool *s, void *slot) { s->free_ones[s->n_free++] = slot; }

size_t bucket_pool_bytes(const BucketPool *s) { return (size_t)s->taken * s->bytes; }

void bucket_pool_free(BucketPool *s) {
    while (s->n_free) {
        void *block = s->free_ones[--s->n_free];
        comm_unregister(s->comm, block);
        device_release(s->registry->device, block, s->bytes);
    }
    free(s->free_ones);
}
