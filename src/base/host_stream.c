#include "base/host_stream.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/fault.h"
#include "base/mem.h"

typedef struct Task {
    void (*run)(void *arg);
    void *arg;
    struct Task *next;
} Task;

typedef struct Stream {
    HostStream face; /* the first member, so that a HostStream * can be cast to a Stream * */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    Task *first, **last;
    int64_t added, done;
    bool closed;
} Stream;

static void *run_tasks(void *arg) {
    Stream *s = arg;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->first && !s->closed) pthread_cond_wait(&s->changed, &s->lock);
        Task *t = s->first;
        if (!t) break;
        pthread_mutex_unlock(&s->lock);
        t->run(t->arg);
        pthread_mutex_lock(&s->lock);
        s->first = t->next;
        if (!s->first) s->last = &s->first;
        free(t);
        s->done++;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static void add(HostStream *face, void (*run)(void *), void *arg) {
    Stream *s = (Stream *)face;
    Task *t = mem_alloc(sizeof *t);
    *t = (Task){.run = run, .arg = arg};
    pthread_mutex_lock(&s->lock);
    *s->last = t;
    s->last = &t->next;
    s->added++;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

HostStream *host_stream_new(void) {
    Stream *s = mem_zero(1, sizeof *s);
    s->face.add = add;
    s->last = &s->first;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    const int rc = pthread_create(&s->thread, NULL, run_tasks, s);
    CHECK(rc == 0, "cannot start the thread of a stream: error %d", rc);
    return &s->face;
}

void host_stream_free(HostStream *face) {
    if (!face) return;
    Stream *s = (Stream *)face;
    pthread_mutex_lock(&s->lock);
    s->closed = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

int64_t host_stream_end(HostStream *face) {
    Stream *s = (Stream *)face;
    pthread_mutex_lock(&s->lock);
    const int64_t end = s->added;
    pthread_mutex_unlock(&s->lock);
    return end;
}

bool host_stream_passed(HostStream *face, int64_t position) {
    Stream *s = (Stream *)face;
    pthread_mutex_lock(&s->lock);
    const bool passed = s->done >= position;
    pthread_mutex_unlock(&s->lock);
    return passed;
}

void host_stream_wait(HostStream *face, int64_t position) {
    Stream *s = (Stream *)face;
    pthread_mutex_lock(&s->lock);
    while (s->done < position) pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
}
