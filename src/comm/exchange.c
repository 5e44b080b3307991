#include "comm/exchange.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"

typedef struct Span {
    char *at;
    int64_t elements;
} Span;

/* ---- messages ---- */

/* Sends or receives elements. Messages with the same tag between two processes arrive in order, so both phases of an
 * operation share a tag. */
static void transfer(const Processes *p, Exchange *x, bool send, Span s, int member, int tag) {
    const int rank = comm_member(&x->work->channel->key, member);
    const int64_t bytes = s.elements * (int64_t)dtype_size(x->work->call.dtype);
    if (!bytes) return;
    if (x->messages == x->capacity) {
        x->capacity = 2 * x->capacity + 8;
        x->message = mem_grow(x->message, (size_t)x->capacity, sizeof *x->message);
        x->peer = mem_grow(x->peer, (size_t)x->capacity, sizeof *x->peer);
    }
    x->peer[x->messages] = member;
    x->message[x->messages++] = send ? p->wire->send(p->line, rank, tag, s.at, bytes)
                                     : p->wire->receive(p->line, rank, tag, s.at, bytes);
}

/* Returns a range in a buffer. A rank without elements may have a NULL buffer, which stays NULL, because adding to a
 * NULL pointer is undefined behaviour. */
static Span span(const CommWork *w, const void *base, int64_t at, int64_t elements) {
    char *first = (char *)(uintptr_t)base;
    return (Span){first ? first + (size_t)at * dtype_size(w->call.dtype) : NULL, elements};
}

/* Returns a member's share of an all-reduce. */
static Span share(const CommWork *w, const void *base, int member) {
    const int64_t n = w->call.n, size = w->call.group.size, at = n * member / size;
    return span(w, base, at, n * (member + 1) / size - at);
}

/* Returns the elements that this rank sends to a member in the first phase. */
static Span outgoing(const CommWork *w, int to) {
    const CommCall *call = &w->call;
    switch (call->kind) {
    case COMM_BROADCAST:
        return span(w, call->out, 0, call->peer == call->group.rank ? call->n : 0);
    case COMM_ALL_REDUCE:
        return share(w, call->in, to);
    case COMM_REDUCE_SCATTER:
        return span(w, call->in, to * call->n, call->n);
    case COMM_ALL_TO_ALL:
        return span(w, call->in, w->in_at[to], call->in_counts[to]);
    case COMM_ALL_GATHER:
    case COMM_SEND:
        return span(w, call->in, 0, call->n);
    default:
        return (Span){0};
    }
}

/* Returns the buffer range that receives a member's elements in the current phase. */
static Span expected(const Exchange *x, int from) {
    const CommWork *w = x->work;
    const CommCall *call = &w->call;
    const int64_t mine = share(w, x->parts, call->group.rank).elements;
    switch (call->kind) {
    case COMM_BROADCAST:
        return span(w, call->out, 0, call->peer == from ? call->n : 0);
    case COMM_ALL_REDUCE:
        return span(w, x->parts, from * mine, mine);
    case COMM_REDUCE_SCATTER:
        return span(w, x->parts, from * call->n, call->n);
    case COMM_ALL_GATHER:
        return span(w, call->out, from * call->n, call->n);
    case COMM_ALL_TO_ALL:
        return span(w, call->out, w->out_at[from], call->out_counts[from]);
    case COMM_RECV:
        return span(w, call->out, 0, call->n);
    default:
        return (Span){0};
    }
}

/* ---- one operation ---- */

static Exchange *exchange_new(CommWork *w) {
    const size_t members = (size_t)w->channel->members;
    Exchange *x = mem_zero(1, sizeof *x);
    *x = (Exchange){.work = w, .heard = 1};
    x->arrived = mem_zero(members, sizeof *x->arrived);
    x->arrived[w->channel->member] = true;
    x->tag_in = mem_zero(2 * members, sizeof *x->tag_in);
    x->tag_out = x->tag_in + members;
    const size_t size = dtype_size(w->call.dtype);
    if (w->call.kind == COMM_REDUCE_SCATTER) x->parts = mem_alloc(members * (size_t)w->call.n * size);
    if (w->call.kind == COMM_ALL_REDUCE)
        x->parts = mem_alloc(members * (size_t)share(w, NULL, w->call.group.rank).elements * size);
    return x;
}

static void exchange_free(Exchange *x) {
    free(x->arrived), free(x->tag_in), free(x->parts), free(x->message), free(x->peer);
    free(x);
}

static void announce(Processes *p, Exchange *x, int to) {
    const CommChannel *ch = x->work->channel;
    const int rank = comm_member(&ch->key, to);
    x->tag_out[to] = p->next_tag[rank];
    p->next_tag[rank] = x->tag_out[to] < p->last_tag ? x->tag_out[to] + 1 : 0;
    const Announcement a = {.key = ch->key,
                            .seq = x->work->seq,
                            .facts = comm_facts_to(x->work, to),
                            .what = STARTS,
                            .member = ch->member,
                            .tag = x->tag_out[to]};
    p->wire->say(p->line, &a, rank);
    transfer(p, x, true, outgoing(x->work, to), to, x->tag_out[to]);
}

static void hear(Comm *c, Exchange *x, const Announcement *a) {
    char why[512];
    const CommFacts mine = comm_facts_to(x->work, a->member);
    if (comm_mismatch(&mine, c->rank, &a->facts, comm_member(&a->key, a->member), why))
        watch_end_world(c, x->work, x->arrived, why);
    x->arrived[a->member] = true;
    x->heard++;
    x->tag_in[a->member] = a->tag;
    transfer(c->host_state, x, false, expected(x, a->member), a->member, a->tag);
}

static void reduce(Exchange *x) {
    const CommWork *w = x->work;
    const CommCall *call = &w->call;
    const int size = call->group.size, me = call->group.rank;
    const void *in[size];
    for (int i = 0; i < size; i++) in[i] = expected(x, i).at;
    in[me] = outgoing(w, me).at;
    const Span out = call->kind == COMM_ALL_REDUCE ? share(w, call->out, me) : span(w, call->out, 0, call->n);
    comm_reduce(call->reduction, call->dtype, in, size, 0, out.elements, out.at);
}

/* Computes this rank's part of the result once all parts have arrived. No member still reads `in`, so `out`
 * may alias `in`. */
static void compute(Exchange *x) {
    const CommWork *w = x->work;
    const CommKind kind = w->call.kind;
    const int me = w->channel->member;
    if (kind == COMM_ALL_REDUCE || kind == COMM_REDUCE_SCATTER) reduce(x);
    if (kind == COMM_ALL_GATHER || kind == COMM_ALL_TO_ALL) {
        const Span from = outgoing(w, me), to = expected(x, me);
        if (from.elements && from.at != to.at)
            memcpy(to.at, from.at, (size_t)from.elements * dtype_size(w->call.dtype));
    }
}

/* Releases the lock during the computation, which can take seconds, because heartbeats to other processes must
 * continue. */
static void collected(Processes *p, Exchange *x) {
    const CommWork *w = x->work;
    pthread_mutex_unlock(&p->lock);
    compute(x);
    pthread_mutex_lock(&p->lock);
    x->messages = x->done = 0;
    x->phase = w->call.kind == COMM_ALL_REDUCE ? PASS_ON : FINISHED;
    for (int i = 0; i < w->channel->members && x->phase == PASS_ON; i++) {
        if (i == w->channel->member) continue;
        transfer(p, x, true, share(w, w->call.out, w->channel->member), i, x->tag_out[i]);
        transfer(p, x, false, share(w, w->call.out, i), i, x->tag_in[i]);
    }
}

/* Advances an operation, and returns true if the operation made progress. */
static bool advance(Processes *p, Exchange *x) {
    if (x->phase == FINISHED) return false;
    while (x->done < x->messages && p->wire->done(p->line, x->message[x->done])) x->done++;
    if (x->done < x->messages || x->heard < x->work->channel->members) return false;
    if (x->phase == COLLECT)
        collected(p, x);
    else
        x->phase = FINISHED;
    return true;
}

/* ---- progress ---- */

static Early **early_of(Processes *p, const CommKey *key) {
    void **place = comm_lookup(&p->early, key);
    if (!*place) *place = mem_zero(1, sizeof(EarlyList));
    return &((EarlyList *)*place)->first;
}

void exchange_take_start(Comm *c, const Announcement *a) {
    Processes *p = c->host_state;
    for (Exchange *x = p->active; x; x = x->next)
        if (x->work->seq == a->seq && !memcmp(&x->work->channel->key, &a->key, sizeof a->key)) {
            hear(c, x, a);
            return;
        }
    Early **first = early_of(p, &a->key), *e = mem_alloc(sizeof *e);
    *e = (Early){.said = *a, .next = *first};
    *first = e;
}

/* Receives messages and advances all operations. Returns true if any operation made progress. */
static bool progress(Comm *c) {
    Processes *p = c->host_state;
    bool any = watch_take_announcements(c);
    for (Exchange *x = p->active; x; x = x->next) any = advance(p, x) || any;
    return any;
}

static void start(Comm *c, CommWork *w) {
    Processes *p = c->host_state;
    const CommChannel *ch = w->channel;
    pthread_mutex_lock(&p->lock);
    Exchange *x = exchange_new(w);
    w->state = x;
    x->next = p->active;
    p->active = x;
    for (int i = 1; i < ch->members; i++) announce(p, x, (ch->member + i) % ch->members);
    for (Early **at = early_of(p, &ch->key), *e; (e = *at);) {
        if (e->said.seq != w->seq) {
            at = &e->next;
            continue;
        }
        *at = e->next;
        hear(c, x, &e->said);
        free(e);
    }
    watch_check_returned(c, x);
    progress(c);
    pthread_mutex_unlock(&p->lock);
}

/* Reports the members that have sent no announcement. If there are none, reports the members whose data have not
 * arrived. */
static _Noreturn void late(Comm *c, Exchange *x) {
    const Processes *p = c->host_state;
    char why[160];
    const bool all = x->heard == x->work->channel->members;
    for (int i = x->done; all && i < x->messages; i++)
        if (!p->wire->done(p->line, x->message[i])) x->arrived[x->peer[i]] = false;
    snprintf(why, sizeof why, "rank %d has waited %g s for %sranks that are late", c->rank, c->deadline_s,
             all ? "data from or to " : "");
    watch_end_world(c, x->work, x->arrived, why);
}

/* Prints a warning about late members. If a member stops after its announcement, the first missing message
 * identifies the member. */
static void warn(const Comm *c, Exchange *x) {
    const CommWork *w = x->work;
    const size_t members = (size_t)w->channel->members;
    bool *in_time = mem_alloc(members * sizeof *in_time);
    memcpy(in_time, x->arrived, members * sizeof *in_time);
    if (x->heard == w->channel->members && x->done < x->messages) in_time[x->peer[x->done]] = false;
    comm_warn(c, &w->channel->key, w->seq, &w->facts, in_time);
    free(in_time);
    x->warned = true;
}

static void wait_for(Comm *c, CommWork *w) {
    Processes *p = c->host_state;
    Exchange *x = w->state;
    const int64_t begin = clock_ns(), deadline = begin + comm_deadline_ns(c),
                  warning = begin + comm_warning_ns(c);
    pthread_mutex_lock(&p->lock);
    for (int tries = 0; x->phase != FINISHED;) {
        const bool any = progress(c);
        const int64_t now = any ? begin : clock_ns();
        if (now >= deadline) late(c, x);
        if (now >= warning && !x->warned) warn(c, x);
        tries = any ? 0 : tries + 1;
        if (any) continue;
        watch_check_lost(c, x);
        watch_rest(p, tries);
    }
    Exchange **at = &p->active;
    while (*at != x) at = &(*at)->next;
    *at = x->next;
    pthread_mutex_unlock(&p->lock);
    exchange_free(x);
}

/* ---- the world ---- */

/* Returns the lowest other rank that has not sent RETURNED, or -1 if there is none. */
static int still_running(const Comm *c) {
    const Processes *p = c->host_state;
    for (int r = 0; r < c->world; r++)
        if (r != c->rank && !p->returned[r]) return r;
    return -1;
}

/* Tells all other ranks that this rank starts no more operations, so that none waits for it. Then waits until all other
 * ranks have sent the same message. */
static void leave(Comm *c) {
    Processes *p = c->host_state;
    CHECK(c->open == 0, "rank %d returned without waiting for %d operations", c->rank, c->open);
    pthread_mutex_lock(&p->lock);
    p->returned[c->rank] = true;
    for (int r = 0; r < c->world; r++)
        if (r != c->rank) watch_say(c, RETURNED, r);
    const int64_t deadline = clock_ns() + comm_deadline_ns(c);
    for (int r, tries = 0; (r = still_running(c)) >= 0;) {
        if (progress(c)) continue;
        if (clock_ns() >= deadline) {
            char why[160];
            snprintf(why, sizeof why, "rank %d has returned, but rank %d has not returned after %g s",
                     c->rank, r, c->deadline_s);
            watch_end_world(c, NULL, NULL, why);
        }
        watch_rest(p, ++tries);
    }
    pthread_mutex_unlock(&p->lock);
    watch_stop(c);
    p->wire->free(p->line);
    for (size_t i = 0; i < p->early.capacity; i++) free(p->early.entry[i].value);
    free(p->early.entry);
    fault_scope(p->outer);
    free(p->next_tag), free(p->returned), free(p->witness), free(p->answered), free(p);
}

Comm *comm_exchange(const Wire *wire, void *line, int last_tag, int world, int rank,
                    const CommOptions *options) {
    static const CommTransport EXCHANGE = {
        .start = start, .wait = wait_for, .free = leave, .end = watch_end, .warn = watch_warn};
    Processes *p = mem_zero(1, sizeof *p);
    *p = (Processes){.wire = wire, .line = line, .last_tag = last_tag};
    p->next_tag = mem_zero((size_t)world, sizeof *p->next_tag);
    p->returned = mem_zero((size_t)world, sizeof *p->returned);
    p->witness = mem_zero((size_t)world, sizeof *p->witness);
    p->answered = mem_zero((size_t)world, sizeof *p->answered);
    snprintf(p->scope.where, sizeof p->scope.where, "rank %d", rank);
    p->outer = fault_scope(&p->scope);
    Comm *c = mem_alloc(sizeof *c);
    comm_init(c, &EXCHANGE, p, world, rank, options);
    c->processes_by = wire->name;
    watch_start(c);
    return c;
}
