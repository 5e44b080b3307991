#include "base/thread.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/fault.h"
#include "base/mem.h"

/* Workers spin briefly before they sleep. A training step runs thousands of short loops, and waking a thread through
 * the kernel takes longer than most of these loops. */
enum { SPINS = 2000 };

typedef struct Worker {
    Pool *pool;
    int index;
    pthread_t thread;
} Worker;

struct Pool {
    int threads;
    Worker *workers; /* [threads - 1] */
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
    atomic_uint generation; /* incremented when a new loop is published */
    atomic_int running;     /* number of workers that are still running the current loop */
    bool stop;
    PoolFn *fn;
    void *arg;
    int64_t n, parts;
};

static void run_part(Pool *p, int64_t part) {
    int64_t begin = p->n * part / p->parts, end = p->n * (part + 1) / p->parts;
    p->fn(p->arg, begin, end);
}

static void *worker_main(void *arg) {
    Worker *w = arg;
    Pool *p = w->pool;
    unsigned seen = 0;
    for (;;) {
        for (int i = 0; i < SPINS && atomic_load_explicit(&p->generation, memory_order_acquire) == seen; i++)
            if (i % 64 == 63) sched_yield();
        pthread_mutex_lock(&p->lock);
        while (atomic_load(&p->generation) == seen && !p->stop) pthread_cond_wait(&p->wake, &p->lock);
        bool stop = p->stop;
        seen = atomic_load(&p->generation);
        pthread_mutex_unlock(&p->lock);
        if (stop) return NULL;
        if (w->index < p->parts - 1) run_part(p, w->index); /* the calling thread runs the last part */
        if (atomic_fetch_sub(&p->running, 1) == 1) {
            pthread_mutex_lock(&p->lock);
            pthread_cond_signal(&p->done);
            pthread_mutex_unlock(&p->lock);
        }
    }
}

Pool *pool_new(int threads) {
    CHECK(threads >= 1, "a pool needs at least one thread, not %d", threads);
    Pool *p = mem_zero(1, sizeof *p);
    p->threads = threads;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->done, NULL);
    p->workers = mem_zero((size_t)threads, sizeof *p->workers);
    for (int i = 0; i < threads - 1; i++) {
        p->workers[i] = (Worker){.pool = p, .index = i};
        int rc = pthread_create(&p->workers[i].thread, NULL, worker_main, &p->workers[i]);
        CHECK(rc == 0, "cannot start thread %d of %d: error %d", i + 1, threads, rc);
    }
    return p;
}

void pool_free(Pool *p) {
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    atomic_fetch_add(&p->generation, 1);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->threads - 1; i++) pthread_join(p->workers[i].thread, NULL);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->wake);
    pthread_cond_destroy(&p->done);
    free(p->workers);
    free(p);
}

int pool_threads(const Pool *p) { return p ? p->threads : 1; }

void pool_for(Pool *p, int64_t n, int64_t grain, PoolFn *fn, void *arg) {
    if (n <= 0) return;
    int64_t parts = n / (grain > 0 ? grain : 1);
    if (parts > pool_threads(p)) parts = pool_threads(p);
    if (parts <= 1) {
        fn(arg, 0, n);
        return;
    }
    pthread_mutex_lock(&p->lock);
    p->fn = fn, p->arg = arg, p->n = n, p->parts = parts;
    atomic_store(&p->running, p->threads - 1);
    atomic_fetch_add_explicit(&p->generation, 1, memory_order_release);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    run_part(p, parts - 1);
    for (int i = 0; i < SPINS && atomic_load_explicit(&p->running, memory_order_acquire); i++)
        if (i % 64 == 63) sched_yield();
    pthread_mutex_lock(&p->lock);
    while (atomic_load(&p->running)) pthread_cond_wait(&p->done, &p->lock);
    pthread_mutex_unlock(&p->lock);
}
