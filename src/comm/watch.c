/* Detects that a process has stopped or ended. The processes form a ring. Each process sends heartbeats to the previous
 * rank and watches the next rank. If some processes run and others do not, at least one running process watches a
 * stopped process. The watching process requests the states of all other processes and prints a report.
 *
 * This file and exchange.c call each other: the watch passes announcements of operations to exchange.c, and
 * waiting operations poll the watch. */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "comm/exchange.h"

#define SECOND     INT64_C(1000000000)
#define TICK_NS    (SECOND / 4) /* time between two heartbeats */
#define SILENCE_NS (6 * SECOND) /* a process that sends no heartbeat for this long is stopped or lost */
#define SUSPENDED_NS                                                                                         \
    (2 * SECOND) /* a process whose tick is later than this was stopped, and perhaps all others were, too */
#define PATIENCE_NS (5 * SECOND) /* time for another rank to print its report */
#define ANSWERS_NS  SECOND

void watch_rest(Processes *p, int tries) {
    enum { YIELDS = 50 };
    pthread_mutex_unlock(&p->lock);
    if (tries <= YIELDS)
        sched_yield();
    else
        p->wire->rest(p->line, tries - YIELDS);
    pthread_mutex_lock(&p->lock);
}

/* ---- announcements ---- */

void watch_say(const Comm *c, Say what, int to) {
    const Processes *p = c->host_state;
    p->wire->say(p->line, &(Announcement){.what = what}, to);
}

static void tell(Comm *c, int asker, const Announcement *asked) {
    const Processes *p = c->host_state;
    CommRecord last;
    const int64_t now = clock_ns();
    Announcement a = {.what = TELLS, .started_ago = -1, .finished_ago = -1};
    a.started = comm_record_has(&c->recorder, &asked->key, asked->seq);
    if (comm_record_last(&c->recorder, &last)) {
        a.key = last.key, a.seq = last.seq, a.facts = last.facts;
        a.started_ago = now - last.started_ns;
        if (last.done_ns) a.finished_ago = now - last.done_ns;
    }
    p->wire->say(p->line, &a, asker);
}

static void learn(CommWitness *w, const Announcement *a, int64_t started_ago, int64_t finished_ago) {
    const int64_t now = clock_ns();
    w->any = true;
    w->last = (CommRecord){.key = a->key,
                           .seq = a->seq,
                           .facts = a->facts,
                           .started_ns = now - started_ago,
                           .done_ns = finished_ago < 0 ? 0 : now - finished_ago};
}

static void take_answer(Processes *p, const Announcement *a, int source) {
    CommWitness *w = &p->witness[source];
    p->answered[source] = true;
    w->silent = false;
    if (!p->returned[source]) w->status = "answers";
    if (a->started_ago >= 0) learn(w, a, a->started_ago, a->finished_ago);
    w->is_in = a->started_ago >= 0 && a->finished_ago < 0;
    if (!a->started || !p->end_key || !p->end_key->device) return;
    for (int i = 0; i < comm_members(p->end_key); i++)
        p->end_arrived[i] |= comm_member(p->end_key, i) == source;
}

/* ---- warnings about device operations ---- */

void watch_warn(Comm *c, const CommKey *key, int64_t seq, const CommFacts *facts) {
    Processes *p = c->host_state;
    const Announcement ask = {.what = WONDERS, .key = *key, .seq = seq};
    Question *q = mem_alloc(sizeof *q);
    *q = (Question){.key = *key, .seq = seq, .facts = *facts, .until_ns = clock_ns() + ANSWERS_NS};
    q->arrived = mem_zero((size_t)comm_members(key), sizeof *q->arrived);
    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < comm_members(key); i++) {
        const int rank = comm_member(key, i);
        q->arrived[i] = rank == c->rank;
        if (rank == c->rank || (p->wire->lost && p->wire->lost(p->line, rank))) continue;
        p->wire->say(p->line, &ask, rank);
        q->unanswered++;
    }
    q->next = p->questions;
    p->questions = q;
    pthread_mutex_unlock(&p->lock);
}

static void reply(Comm *c, int asker, const Announcement *asked) {
    const Processes *p = c->host_state;
    Announcement a = *asked;
    a.what = REPLIES;
    a.started = comm_record_has(&c->recorder, &asked->key, asked->seq);
    p->wire->say(p->line, &a, asker);
}

static void take_reply(const Processes *p, const Announcement *a, int source) {
    Question *q = p->questions;
    while (q && (q->seq != a->seq || memcmp(&q->key, &a->key, sizeof a->key))) q = q->next;
    if (!q) return; /* this answer arrived too late */
    for (int i = 0; i < comm_members(&q->key); i++)
        if (comm_member(&q->key, i) == source) q->arrived[i] = a->started;
    q->unanswered--;
}

static void question_free(Question *q) {
    free(q->arrived);
    free(q);
}

static void settle_questions(const Comm *c, int64_t now) {
    Processes *p = c->host_state;
    for (Question **at = &p->questions, *q; (q = *at);) {
        if (q->unanswered > 0 && now < q->until_ns) {
            at = &q->next;
            continue;
        }
        comm_warn(c, &q->key, q->seq, &q->facts, q->arrived);
        *at = q->next;
        question_free(q);
    }
}

/* ---- aborting the run ---- */

/* Receives messages until the time limit. If `answers` is set, stops once all ranks that can answer have answered. The
 * thread that aborts the run keeps the lock. */
static void listen_for(Comm *c, bool answers, int64_t ns) {
    Processes *p = c->host_state;
    int tries = 0;
    for (const int64_t until = clock_ns() + ns; clock_ns() < until;) {
        int missing = 0;
        for (int r = 0; r < c->world; r++) missing += r != c->rank && !p->answered[r];
        if (answers && !missing) return;
        tries = watch_take_announcements(c) ? 0 : tries + 1;
        if (tries) p->wire->rest(p->line, tries);
    }
}

/* Requests all other ranks' states. Stopped and lost ranks do not answer. If several ranks send requests, the first one
 * prints the report; if the requests cross, the lowest rank does. The rank that prints the report ends the other
 * ranks. */
static _Noreturn void end_world(Comm *c, const CommKey *key, int64_t seq, const CommFacts *facts,
                                bool *arrived, const char *why) {
    Processes *p = c->host_state;
    p->ending = true;
    p->end_key = key, p->end_seq = seq, p->end_arrived = arrived;
    if (p->yields) listen_for(c, false, PATIENCE_NS);
    p->yields = false;
    Announcement ask = {.what = ASKS, .seq = seq};
    if (key) ask.key = *key;
    for (int r = 0; r < c->world; r++) {
        const bool lost = p->wire->lost && p->wire->lost(p->line, r);
        p->answered[r] = lost;
        p->witness[r].silent = r != c->rank;
        p->witness[r].status = p->returned[r] ? "has returned" : lost ? "has ended" : "does not answer";
        if (r != c->rank && !lost) p->wire->say(p->line, &ask, r);
    }
    CommWitness *own = &p->witness[c->rank];
    own->status = "reports";
    own->any = comm_record_last(&c->recorder, &own->last);
    own->is_in = own->any && !own->last.done_ns;
    listen_for(c, true, ANSWERS_NS);
    if (p->yields) listen_for(c, false, PATIENCE_NS);
    comm_report(c, why, key, seq, facts, arrived, p->witness);
    comm_say_farewell(c);
    p->wire->end(p->line);
    abort();
}

_Noreturn void watch_end_world(Comm *c, const CommWork *w, bool *arrived, const char *why) {
    end_world(c, w ? &w->channel->key : NULL, w ? w->seq : 0, w ? &w->facts : NULL, arrived, why);
}

_Noreturn void watch_end(Comm *c, const CommKey *key, int64_t seq, const CommFacts *facts, const char *why) {
    Processes *p = c->host_state;
    bool *arrived = mem_zero((size_t)comm_members(key), sizeof *arrived);
    for (int i = 0; i < comm_members(key); i++) arrived[i] = comm_member(key, i) == c->rank;
    pthread_mutex_lock(&p->lock);
    end_world(c, key, seq, facts, arrived, why);
}

void watch_check_returned(Comm *c, const Exchange *x) {
    const Processes *p = c->host_state;
    char why[160];
    for (int i = 0; i < x->work->channel->members; i++) {
        const int rank = comm_member(&x->work->channel->key, i);
        if (x->arrived[i] || !p->returned[rank]) continue;
        snprintf(why, sizeof why, "rank %d has returned, but other ranks wait for it to start an operation",
                 rank);
        watch_end_world(c, x->work, x->arrived, why);
    }
}

/* Returns whether the operation waits for the given rank. */
static bool waits_for(const Processes *p, const Exchange *x, int rank) {
    int member = x->work->channel->members - 1;
    while (member >= 0 && comm_member(&x->work->channel->key, member) != rank) member--;
    if (member < 0 || x->phase == FINISHED) return false;
    bool waits = !x->arrived[member];
    for (int i = x->done; i < x->messages; i++) waits |= x->peer[i] == member;
    return waits && !p->returned[rank];
}

/* Aborts the run because a process has left the world. */
static _Noreturn void end_without(Comm *c, int rank, const char *why) {
    const Processes *p = c->host_state;
    const Exchange *x = p->active;
    while (x && !waits_for(p, x, rank)) x = x->next;
    watch_end_world(c, x ? x->work : NULL, x ? x->arrived : NULL, why);
}

static _Noreturn void end_after_loss(Comm *c) {
    const Processes *p = c->host_state;
    char why[300];
    snprintf(why, sizeof why, "rank %d has ended: %s", p->lost, p->wire->lost(p->line, p->lost));
    end_without(c, p->lost, why);
}

static void take_loss(Processes *p, int rank) {
    if (p->returned[rank]) return;
    p->answered[rank] = true;
    p->witness[rank].status = "has ended";
    if (p->lost < 0) p->lost = rank, p->lost_ns = clock_ns();
}

void watch_check_lost(Comm *c, const Exchange *x) {
    const Processes *p = c->host_state;
    if (p->lost >= 0 && waits_for(p, x, p->lost)) end_after_loss(c);
}

/* Checks an announcement from another process, because an invalid key would cause accesses outside an
 * array. */
static bool is_sound(const Comm *c, const Announcement *a, int source) {
    const Group *g = &a->key.group;
    const CommFacts *f = &a->facts;
    if (g->size < 1 || g->size > c->world || g->n_axes < 0 || g->n_axes > 4) return false;
    int64_t members = 1, low = g->first, high = g->first;
    for (int i = 0; i < g->n_axes; i++) {
        if (g->axis_size[i] < 1 || (members *= g->axis_size[i]) > g->size) return false;
        const int64_t reach = (int64_t)(g->axis_size[i] - 1) * g->axis_stride[i];
        *(reach < 0 ? &low : &high) += reach;
    }
    return members == g->size && low >= 0 && high < c->world && a->key.src >= -1 && a->key.dst >= -1 &&
           a->key.src < g->size && a->key.dst < g->size && (a->key.src < 0) == (a->key.dst < 0) &&
           a->member >= 0 && a->member < comm_members(&a->key) &&
           (a->what == TELLS || comm_member(&a->key, a->member) == source) &&
           (unsigned)f->kind <= COMM_GRAPH && (unsigned)f->reduction <= COMM_MIN &&
           (unsigned)f->dtype < DTYPES && memchr(f->site, 0, sizeof f->site);
}

static void take(Comm *c, const Announcement *a, int source) {
    Processes *p = c->host_state;
    const bool names_operation = a->what == STARTS || (a->what == TELLS && a->started_ago >= 0);
    CHECK(!names_operation || is_sound(c, a, source), "rank %d sent a message without a valid operation",
          source);
    if (source == (c->rank + 1) % c->world) p->heard_ns = clock_ns();
    switch ((Say)a->what) {
    case STARTS:
        learn(&p->witness[source], a, 0, -1);
        if (!p->ending)
            exchange_take_start(c, a);
        else if (p->end_key && a->seq == p->end_seq && !memcmp(&a->key, p->end_key, sizeof a->key))
            p->end_arrived[a->member] = true;
        break;
    case RETURNED:
        p->returned[source] = true;
        for (const Exchange *x = p->active; x && !p->ending; x = x->next) watch_check_returned(c, x);
        break;
    case ASKS:
        p->yields |= !p->ending || source < c->rank;
        tell(c, source, a);
        break;
    case TELLS:
        take_answer(p, a, source);
        break;
    case WONDERS:
        reply(c, source, a);
        break;
    case REPLIES:
        take_reply(p, a, source);
        break;
    case ENDS:
        comm_say_farewell(c);
        _exit(ERR_INFRA);
    case LOST:
        take_loss(p, source);
        break;
    case BEATS:
    case SAYS:
        break;
    }
}

bool watch_take_announcements(Comm *c) {
    const Processes *p = c->host_state;
    Announcement a;
    int source;
    bool any = false;
    for (; p->wire->hear(p->line, &a, &source); any = true) take(c, &a, source);
    return any;
}

/* ---- the watching thread ---- */

static void check_silence(Comm *c, int64_t now) {
    const Processes *p = c->host_state;
    const int next = (c->rank + 1) % c->world;
    const int64_t bytes = p->wire->heard ? p->wire->heard(p->line, next) : 0,
                  heard = bytes > p->heard_ns ? bytes : p->heard_ns;
    char why[200];
    if (!heard) return; /* the watched process may still be connecting */
    if (p->returned[next] || now - heard < SILENCE_NS) return;
    snprintf(
        why, sizeof why,
        "rank %d has not been heard from for %.1f s: its process is stopped, or its host or network is down",
        next, (double)(now - heard) * 1e-9);
    end_without(c, next, why);
}

static void tick(Comm *c, int64_t now) {
    const Processes *p = c->host_state;
    watch_take_announcements(c);
    if (!p->returned[c->rank]) watch_say(c, BEATS, (c->rank + c->world - 1) % c->world);
    check_silence(c, now);
    settle_questions(c, now);
    if (p->lost >= 0 && now - p->lost_ns > TICK_NS)
        end_after_loss(c); /* the delay allows an operation to report the loss itself */
}

static void *watcher(void *arg) {
    Comm *c = arg;
    Processes *p = c->host_state;
    FaultScope scope = p->scope;
    fault_scope(&scope);
    pthread_mutex_lock(&p->lock);
    for (int64_t last = clock_ns(); !p->closed;) {
        const int64_t until = last + TICK_NS;
        const struct timespec at = {until / SECOND, until % SECOND};
        if (pthread_cond_clockwait(&p->closing, &p->lock, CLOCK_MONOTONIC, &at) != ETIMEDOUT) continue;
        const int64_t now = clock_ns();
        if (now - last > SUSPENDED_NS) p->heard_ns = now;
        last = now;
        tick(c, now);
    }
    pthread_mutex_unlock(&p->lock);
    fault_scope(NULL);
    return NULL;
}

void watch_start(Comm *c) {
    Processes *p = c->host_state;
    sigset_t all, before;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->closing, NULL);
    p->lost = -1;
    if (c->world == 1) return;
    sigfillset(&all); /* the program's other threads handle signals */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int rc = pthread_create(&p->watcher, NULL, watcher, c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    CHECK(rc == 0, "cannot start the thread that watches other processes: error %d", rc);
}

void watch_stop(Comm *c) {
    Processes *p = c->host_state;
    pthread_mutex_lock(&p->lock);
    p->closed = true;
    pthread_cond_signal(&p->closing);
    pthread_mutex_unlock(&p->lock);
    if (c->world > 1) pthread_join(p->watcher, NULL);
    for (Question *q = p->questions, *next; q; q = next) {
        next = q->next;
        question_free(q);
    }
    pthread_cond_destroy(&p->closing);
    pthread_mutex_destroy(&p->lock);
}
