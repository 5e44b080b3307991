/* Tracks operations in flight, and runs the thread that watches them. NCCL does not detect a missing member.
 * On each rank, a watchdog polls the operations in flight. It warns if an operation is late, and aborts the run if one
 * misses the deadline or if NCCL reports an error. Events of a CUDA graph cannot be queried, so the watchdog watches a
 * graph's launch instead of its operations. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/mem.h"
#include "comm/nccl/state.h"

enum { POLL_NS = 50000000 };

/* ---- errors ---- */

static _Noreturn void end_world(const NcclState *s, const CommKey *key, const NcclFlight *f,
                                const char *why) {
    s->comm->host->end(s->comm, key, f->seq, &f->facts, why);
    abort();
}

void nccl_check(const NcclState *s, NcclComm comm, int result, const char *call) {
    char why[400];
    if (result == NCCL_SUCCESS) return;
    snprintf(why, sizeof why, "%s fails on rank %d: %s; %s", call, s->comm->rank,
             s->nccl.GetErrorString(result), s->nccl.GetLastError(comm));
    CHECK(s->calling, "%s", why);
    end_world(s, &s->calling_key, s->calling, why);
}

/* ---- operations in flight ---- */

NcclFlight *nccl_flight_new(NcclState *s, const CommWork *w) {
    pthread_mutex_lock(&s->lock);
    NcclFlight *f = s->spare;
    if (f) s->spare = f->next;
    pthread_mutex_unlock(&s->lock);
    DeviceEvent *done = f ? f->done : device_event_new(s->device);
    if (!f) f = mem_alloc(sizeof *f);
    *f = (NcclFlight){
        .done = done, .record = w->record, .seq = w->seq, .start_ns = clock_ns(), .facts = w->facts};
    return f;
}

void nccl_fly(NcclState *s, NcclLink *l, NcclFlight *f) {
    pthread_mutex_lock(&s->lock);
    f->watched = true;
    *l->last = f;
    l->last = &f->next;
    pthread_mutex_unlock(&s->lock);
}

void nccl_set_calling(NcclState *s, const CommKey *key, NcclFlight *f) {
    pthread_mutex_lock(&s->lock);
    s->calling_key = *key, s->calling = f, s->calling_ns = clock_ns();
    pthread_mutex_unlock(&s->lock);
}

void nccl_set_calling_since(NcclState *s, int64_t ns) {
    pthread_mutex_lock(&s->lock);
    s->calling_ns = ns;
    pthread_mutex_unlock(&s->lock);
}

void nccl_sweep(NcclState *s, NcclLink *l) {
    for (NcclFlight *f; (f = l->first) && device_event_happened(s->device, f->done);) {
        comm_record_done(&s->comm->recorder, f->record);
        l->first = f->next;
        if (!l->first) l->last = &l->first;
        l->swept_ns = clock_ns();
        f->watched = false;
        if (f->waited) f->next = s->spare, s->spare = f;
    }
}

void nccl_flights_free(const NcclState *s, NcclFlight *f) {
    for (NcclFlight *next; f; f = next) {
        next = f->next;
        device_event_free(s->device, f->done);
        free(f);
    }
}

/* ---- watchdog ---- */

static bool is_late(const NcclState *s, const NcclFlight *f) {
    return f && clock_ns() - f->start_ns >= (int64_t)(s->comm->deadline_s * 1e9);
}

/* Aborts the run if the operation has missed the deadline. */
static void check_late(const NcclState *s, const CommKey *key, const NcclFlight *f, const char *what) {
    char why[400];
    if (!is_late(s, f)) return;
    snprintf(why, sizeof why, "rank %d has waited %g s for %s", s->comm->rank, s->comm->deadline_s, what);
    end_world(s, key, f, why);
}

/* Prints an operation's late members once, after the operation has been the oldest on its channel for a tenth of the
 * deadline. */
static void check_slow(const NcclState *s, const CommKey *key, NcclFlight *f, int64_t since_ns) {
    if (!f || f->warned || clock_ns() - since_ns < comm_warning_ns(s->comm)) return;
    f->warned = true;
    s->comm->host->warn(s->comm, key, f->seq, &f->facts);
}

/* Aborts the run if `l`'s communicator reports an error. The report is about the operation on the link `busy`. */
static void check_async(const NcclState *s, const NcclLink *l, const NcclLink *busy) {
    char why[400];
    int error = NCCL_SUCCESS;
    NCCL(s, l->nccl, CommGetAsyncError, l->nccl, &error);
    if (error == NCCL_SUCCESS || error == NCCL_IN_PROGRESS) return;
    snprintf(why, sizeof why, "NCCL reports an error on rank %d: %s; %s", s->comm->rank,
             s->nccl.GetErrorString(error), s->nccl.GetLastError(l->nccl));
    end_world(s, &busy->channel->key, busy->first, why);
}

static void look_at(NcclState *s, NcclLink *l) {
    nccl_sweep(s, l);
    const NcclLink *busy = l->first ? l : s->graphs && s->graphs->first ? s->graphs : NULL;
    if (busy && l->nccl) check_async(s, l, busy);
    check_late(s, &l->channel->key, l->first,
               l->nccl ? "an NCCL operation" : "a CUDA graph with NCCL operations");
    if (l->first)
        check_slow(s, &l->channel->key, l->first,
                   l->swept_ns > l->first->start_ns ? l->swept_ns : l->first->start_ns);
}

static void *watch(void *arg) {
    NcclState *s = arg;
    fault_scope(&s->scope);
    pthread_mutex_lock(&s->lock);
    while (!s->closed) {
        const int64_t ns = clock_ns() + POLL_NS;
        const struct timespec until = {ns / 1000000000, ns % 1000000000};
        if (pthread_cond_clockwait(&s->closing, &s->lock, CLOCK_MONOTONIC, &until) != ETIMEDOUT) continue;
        check_late(s, &s->calling_key, s->calling, "the connection for an NCCL operation");
        check_slow(s, &s->calling_key, s->calling, s->calling_ns);
        for (NcclLink *l = s->links; l; l = l->next) look_at(s, l);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

void nccl_watch_begin(NcclState *s) {
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->closing, NULL);
    snprintf(s->scope.where, sizeof s->scope.where, "rank %d", s->comm->rank);
    const int rc = pthread_create(&s->watchdog, NULL, watch, s);
    CHECK(rc == 0, "cannot start the watchdog thread of NCCL: error %d", rc);
}

void nccl_watch_end(NcclState *s) {
    pthread_mutex_lock(&s->lock);
    s->closed = true;
    pthread_cond_signal(&s->closing);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->watchdog, NULL);
    pthread_cond_destroy(&s->closing);
    pthread_mutex_destroy(&s->lock);
}
