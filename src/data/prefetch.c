/* Microbatch k is in slot k modulo `slots` of the ring. `filled` counts the batches that the reader has filled, and
 * `taken` counts the batches that the consumer has received. `filled` is at most taken + slots - 1, so the reader never
 * overwrites the batch that is in use. */
#include "data/prefetch.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/fault.h"
#include "base/mem.h"

struct Prefetch {
    const Dataset *dataset;
    Sampler *sampler;
    int64_t slots;
    Batch *ring;
    int64_t *indices;
    pthread_t thread;
    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t changed;
    int64_t filled, taken;
    bool ended, stop;
    Err err;
};

/* Waits until a slot is free, and returns the slot. Returns NULL if the reader must stop. */
static Batch *wait_for_room(Prefetch *p) {
    pthread_mutex_lock(&p->lock);
    while (!p->stop && p->filled - p->taken >= p->slots - 1) pthread_cond_wait(&p->changed, &p->lock);
    Batch *slot = p->stop ? NULL : &p->ring[p->filled % p->slots];
    pthread_mutex_unlock(&p->lock);
    return slot;
}

static void *reader(void *arg) {
    Prefetch *p = arg;
    bool more = true;
    for (Batch *slot; more && (slot = wait_for_room(p));) {
        int64_t count;
        Err e = ERR_OK;
        more = sampler_next(p->sampler, p->indices, &count);
        if (more) e = data_batch(p->dataset, p->indices, count, slot);
        if (e.code) more = false;
        pthread_mutex_lock(&p->lock);
        p->filled += more;
        p->ended = !more;
        p->err = e;
        pthread_cond_broadcast(&p->changed);
        pthread_mutex_unlock(&p->lock);
    }
    return NULL;
}

Prefetch *prefetch_start(const Dataset *dataset, Sampler *sampler, int64_t micro_batch_size,
                         SampleShape shape, int depth) {
    CHECK(depth >= 1, "%d batches cannot be prefetched; at least 1 is needed", depth);
    Prefetch *p = mem_zero(1, sizeof *p);
    *p = (Prefetch){.dataset = dataset, .sampler = sampler, .slots = depth + 1};
    p->ring = mem_zero((size_t)p->slots, sizeof *p->ring);
    for (int64_t i = 0; i < p->slots; i++) p->ring[i] = batch_new(micro_batch_size, shape);
    p->indices = mem_zero((size_t)micro_batch_size, sizeof *p->indices);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    int rc = pthread_create(&p->thread, NULL, reader, p);
    CHECK(rc == 0, "cannot start the data reader: error %d", rc);
    return p;
}

Err prefetch_next(Prefetch *p, const Batch **out) {
    pthread_mutex_lock(&p->lock);
    while (!p->ended && p->filled == p->taken) pthread_cond_wait(&p->changed, &p->lock);
    bool ready = p->filled > p->taken;
    *out = ready ? &p->ring[p->taken++ % p->slots] : NULL;
    Err e = ready ? ERR_OK : p->err;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    return e;
}

void prefetch_stop(Prefetch *p) {
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->changed);
    for (int64_t i = 0; i < p->slots; i++) batch_free(&p->ring[i]);
    free(p->ring), free(p->indices);
    sampler_free(p->sampler);
    free(p);
}
