/* Ranks as MPI processes. Every operation consists of messages between pairs. Each member first announces its
 * operation to each other member, and then sends its data. So a member that is late, or that does something
 * else, is known by name, and no communicator has to be set up. Sums are computed here, in member order: a
 * member collects all parts of its share, adds them and, in an all-reduce, passes the result on. comm_start
 * and comm_wait make progress on all operations alike. */
#include "comm/transport.h"

#include "base/fault.h"

#ifndef ISOTRON_MPI

bool comm_mpi_present(void) { return false; }

Comm *comm_mpi(const CommOptions *options) {
    (void)options;
    fault(__FILE__, __LINE__, "ISOTRON_MPI",
          "this program was built without MPI; install Open MPI and build again");
}

#else

#include <mpi.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"

#define MPI_CHECK(call) mpi_check(call, #call)

#define PATIENCE_NS INT64_C(5000000000) /* time for another rank to print its report */

enum { PIECE = 1 << 30 }; /* bytes of one message: MPI counts in int */

/* Tags of announcements. */
typedef enum Say {
    STARTS,   /* an operation */
    RETURNED, /* this rank starts no more operations */
    ASKS,     /* asks for the receiver's state, because the sender is about to end the world */
    TELLS,    /* the sender's state: its last operation */
} Say;

typedef struct Announcement {
    CommKey key;
    int64_t seq;
    CommFacts facts;
    int32_t member;                    /* STARTS: the sender */
    int32_t tag;                       /* STARTS: of the data to this receiver, in order of phases */
    int64_t started_ago, finished_ago; /* TELLS: ns before now, because clocks differ between machines; -1:
                                          not started or finished */
} Announcement;

typedef struct Early { /* announced before this rank has started it */
    Announcement said;
    struct Early *next;
} Early;

typedef enum Phase { COLLECT, PASS_ON, FINISHED } Phase;

typedef struct Exchange {
    CommWork *work;
    Phase phase;
    int heard;             /* members whose announcement has arrived, this one included */
    bool *arrived;         /* [members] */
    int *tag_in, *tag_out; /* [members] */
    Announcement *said;    /* [members], the announcements to them */
    char *parts;           /* of a reduction: this rank's share from each member */
    MPI_Request *request;
    int *peer; /* the member of each request */
    int requests, capacity;
    struct Exchange *next;
} Exchange;

typedef struct Mpi {
    MPI_Comm control, data;
    int tag_end;          /* the largest tag; after it tags begin again */
    int *next_tag;        /* [world], the next tag of data to each rank */
    bool *returned;       /* [world] */
    CommWitness *witness; /* [world], the states that this rank has received */
    bool ending;          /* this rank is about to report */
    bool yields;          /* another rank will report */
    int answers;          /* number of answers to this rank's ASKS */
    Announcement incoming;
    MPI_Request listening;
    Exchange *active;
    FaultScope scope, *outer;
} Mpi;

typedef struct Span {
    char *at;
    int64_t elements;
} Span;

static void mpi_check(int rc, const char *call) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;
    if (rc != MPI_SUCCESS) MPI_Error_string(rc, text, &n);
    CHECK(rc == MPI_SUCCESS, "%s: %s", call, text);
}

/* ---- faults ---- */

/* Sends a message that is small enough not to wait for the receiver. */
static void say(const Comm *c, Say what, Announcement a, int to) {
    const Mpi *mpi = c->host_state;
    MPI_CHECK(MPI_Send(&a, sizeof a, MPI_BYTE, to, what, mpi->control));
}

static void tell(Comm *c, int asker) {
    CommRecord last;
    const int64_t now = clock_ns();
    Announcement a = {.started_ago = -1, .finished_ago = -1};
    if (comm_record_last(&c->recorder, &last)) {
        a = (Announcement){.key = last.key,
                           .seq = last.seq,
                           .facts = last.facts,
                           .started_ago = now - last.started_ns,
                           .finished_ago = last.done_ns ? now - last.done_ns : -1};
    }
    say(c, TELLS, a, asker);
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

static bool take_announcements(Comm *);

/* Listens until this many ranks have answered, or the time is up. */
static void listen_for(Comm *c, int answers, int64_t ns) {
    const Mpi *mpi = c->host_state;
    for (const int64_t until = clock_ns() + ns; mpi->answers < answers && clock_ns() < until; sched_yield())
        take_announcements(c);
}

/* Ends the world with a report. Asks all other ranks for their state: ranks that wait in an operation answer,
 * stuck ranks do not. If several ranks come here, the first one to ask (of several, the lowest) reports, and
 * its report ends the others. */
static _Noreturn void end_world(Comm *c, const CommWork *w, const bool *arrived, const char *why) {
    const int64_t answers_ns = 1000000000;
    Mpi *mpi = c->host_state;
    mpi->ending = true;
    if (mpi->yields) listen_for(c, c->world, PATIENCE_NS);
    mpi->yields = false;
    for (int r = 0; r < c->world; r++) {
        mpi->witness[r].status = mpi->returned[r] ? "has returned" : "does not answer";
        if (r != c->rank) say(c, ASKS, (Announcement){0}, r);
    }
    mpi->witness[c->rank].any = comm_record_last(&c->recorder, &mpi->witness[c->rank].last);
    listen_for(c, c->world - 1, answers_ns);
    if (mpi->yields) listen_for(c, c->world, PATIENCE_NS);
    comm_report(c, why, &w->channel->key, w->seq, &w->facts, arrived, mpi->witness);
    MPI_Abort(MPI_COMM_WORLD, ERR_INFRA);
    abort();
}

/* Does not ask other ranks, because another thread may be inside MPI. mpirun ends the other processes. */
static _Noreturn void mpi_end(Comm *c, const CommKey *key, int64_t seq, const CommFacts *facts,
                              const char *why) {
    bool *arrived = mem_zero((size_t)comm_members(key), sizeof *arrived);
    CommWitness *witness = mem_zero((size_t)c->world, sizeof *witness);
    for (int i = 0; i < comm_members(key); i++) arrived[i] = comm_member(key, i) == c->rank;
    for (int r = 0; r < c->world; r++) witness[r].status = r == c->rank ? "is running" : "was not asked";
    witness[c->rank].any = comm_record_last(&c->recorder, &witness[c->rank].last);
    comm_report(c, why, key, seq, facts, arrived, witness);
    _exit(ERR_INFRA);
}

static void check_returned(Comm *c, const Exchange *x) {
    const Mpi *mpi = c->host_state;
    char why[160];
    for (int i = 0; i < x->work->channel->members; i++) {
        const int rank = comm_member(&x->work->channel->key, i);
        if (x->arrived[i] || !mpi->returned[rank]) continue;
        snprintf(why, sizeof why, "rank %d has returned and will not start what others wait for", rank);
        end_world(c, x->work, x->arrived, why);
    }
}

/* Reports late members: those without an announcement, or else those whose data have not arrived. */
static _Noreturn void late(Comm *c, Exchange *x) {
    char why[160];
    const bool all = x->heard == x->work->channel->members;
    for (int i = 0, done; all && i < x->requests; i++) {
        MPI_CHECK(MPI_Test(&x->request[i], &done, MPI_STATUS_IGNORE));
        if (!done) x->arrived[x->peer[i]] = false;
    }
    snprintf(why, sizeof why, "rank %d has waited %g s for %sranks that are late", c->rank, c->deadline_s,
             all ? "data from or to " : "");
    end_world(c, x->work, x->arrived, why);
}

/* ---- messages ---- */

static MPI_Request *request_new(Exchange *x, int member) {
    if (x->requests == x->capacity) {
        x->capacity = 2 * x->capacity + 8;
        x->request = mem_grow(x->request, (size_t)x->capacity, sizeof *x->request);
        x->peer = mem_grow(x->peer, (size_t)x->capacity, sizeof *x->peer);
    }
    x->peer[x->requests] = member;
    return &x->request[x->requests++];
}

/* Messages of one pair and tag keep their order, so the pieces of a span, and both phases, share a tag. */
static void transfer(const Mpi *mpi, Exchange *x, bool send, Span s, int member, int tag) {
    const int rank = comm_member(&x->work->channel->key, member);
    const int64_t bytes = s.elements * (int64_t)dtype_size(x->work->call.dtype);
    for (int64_t at = 0; at < bytes; at += PIECE) {
        const int n = (int)(bytes - at < PIECE ? bytes - at : PIECE);
        MPI_Request *r = request_new(x, member);
        if (send)
            MPI_CHECK(MPI_Isend(s.at + at, n, MPI_BYTE, rank, tag, mpi->data, r));
        else
            MPI_CHECK(MPI_Irecv(s.at + at, n, MPI_BYTE, rank, tag, mpi->data, r));
    }
}

/* A rank without elements may have no buffer, so nothing is added to a NULL pointer. */
static Span span(const CommWork *w, const void *base, int64_t at, int64_t elements) {
    char *first = (char *)(uintptr_t)base;
    return (Span){first ? first + (size_t)at * dtype_size(w->call.dtype) : NULL, elements};
}

/* A member's share of an all-reduce. */
static Span share(const CommWork *w, const void *base, int member) {
    const int64_t n = w->call.n, size = w->call.group.size, at = n * member / size;
    return span(w, base, at, n * (member + 1) / size - at);
}

/* The elements for a member in the first phase. */
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

/* The place for a member's elements. */
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
    x->said = mem_zero(members, sizeof *x->said);
    const size_t size = dtype_size(w->call.dtype);
    if (w->call.kind == COMM_REDUCE_SCATTER) x->parts = mem_alloc(members * (size_t)w->call.n * size);
    if (w->call.kind == COMM_ALL_REDUCE)
        x->parts = mem_alloc(members * (size_t)share(w, NULL, w->call.group.rank).elements * size);
    return x;
}

static void exchange_free(Exchange *x) {
    free(x->arrived), free(x->tag_in), free(x->said), free(x->parts), free(x->request), free(x->peer);
    free(x);
}

static void announce(Mpi *mpi, Exchange *x, int to) {
    const CommChannel *ch = x->work->channel;
    const int rank = comm_member(&ch->key, to);
    x->tag_out[to] = mpi->next_tag[rank];
    mpi->next_tag[rank] = x->tag_out[to] < mpi->tag_end ? x->tag_out[to] + 1 : 0;
    x->said[to] = (Announcement){.key = ch->key,
                                 .seq = x->work->seq,
                                 .facts = comm_facts_to(x->work, to),
                                 .member = ch->member,
                                 .tag = x->tag_out[to]};
    MPI_CHECK(MPI_Isend(&x->said[to], sizeof x->said[to], MPI_BYTE, rank, STARTS, mpi->control,
                        request_new(x, to)));
    transfer(mpi, x, true, outgoing(x->work, to), to, x->tag_out[to]);
}

static void hear(Comm *c, Exchange *x, const Announcement *a) {
    char why[512];
    const CommFacts mine = comm_facts_to(x->work, a->member);
    if (comm_mismatch(&mine, c->rank, &a->facts, comm_member(&a->key, a->member), why))
        end_world(c, x->work, x->arrived, why);
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

/* Called when all parts are here. No member reads `in` any more, which may be `out`. */
static void collected(const Mpi *mpi, Exchange *x) {
    const CommWork *w = x->work;
    const CommKind kind = w->call.kind;
    const int me = w->channel->member;
    x->requests = 0;
    x->phase = kind == COMM_ALL_REDUCE ? PASS_ON : FINISHED;
    if (kind == COMM_ALL_REDUCE || kind == COMM_REDUCE_SCATTER) reduce(x);
    if (kind == COMM_ALL_GATHER || kind == COMM_ALL_TO_ALL) {
        const Span from = outgoing(w, me), to = expected(x, me);
        if (from.elements && from.at != to.at)
            memcpy(to.at, from.at, (size_t)from.elements * dtype_size(w->call.dtype));
    }
    for (int i = 0; i < w->channel->members && kind == COMM_ALL_REDUCE; i++) {
        if (i == me) continue;
        transfer(mpi, x, true, share(w, w->call.out, me), i, x->tag_out[i]);
        transfer(mpi, x, false, share(w, w->call.out, i), i, x->tag_in[i]);
    }
}

/* Advances an operation; true if it made progress. */
static bool advance(const Mpi *mpi, Exchange *x) {
    int done;
    if (x->phase == FINISHED) return false;
    MPI_CHECK(MPI_Testall(x->requests, x->request, &done, MPI_STATUSES_IGNORE));
    if (!done || x->heard < x->work->channel->members) return false;
    if (x->phase == COLLECT)
        collected(mpi, x);
    else
        x->phase = FINISHED;
    return true;
}

/* ---- progress ---- */

static void listen(Mpi *mpi) {
    MPI_CHECK(MPI_Irecv(&mpi->incoming, sizeof mpi->incoming, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG,
                        mpi->control, &mpi->listening));
}

static void take_start(Comm *c, const Announcement *a) {
    const Mpi *mpi = c->host_state;
    CommChannel *ch = comm_channel(c, &a->key);
    for (Exchange *x = mpi->active; x; x = x->next)
        if (x->work->channel == ch && x->work->seq == a->seq) {
            hear(c, x, a);
            return;
        }
    Early *e = mem_alloc(sizeof *e);
    *e = (Early){.said = *a, .next = ch->state};
    ch->state = e;
}

static void take(Comm *c, Say what, int source) {
    Mpi *mpi = c->host_state;
    const Announcement a = mpi->incoming;
    CommWitness *w = &mpi->witness[source];
    listen(mpi); /* the next call may end the world, and must know the latest messages */
    switch (what) {
    case STARTS:
        learn(w, &a, 0, -1);
        if (!mpi->ending) take_start(c, &a);
        break;
    case RETURNED:
        mpi->returned[source] = true;
        for (const Exchange *x = mpi->active; x && !mpi->ending; x = x->next) check_returned(c, x);
        break;
    case ASKS:
        mpi->yields |= !mpi->ending || source < c->rank;
        tell(c, source);
        break;
    case TELLS:
        mpi->answers++;
        if (!mpi->returned[source]) w->status = "answers";
        if (a.started_ago >= 0) learn(w, &a, a.started_ago, a.finished_ago);
        w->is_in = a.started_ago >= 0 && a.finished_ago < 0;
        break;
    }
}

static bool take_announcements(Comm *c) {
    Mpi *mpi = c->host_state;
    for (bool any = false;; any = true) {
        int come;
        MPI_Status status;
        MPI_CHECK(MPI_Test(&mpi->listening, &come, &status));
        if (!come) return any;
        take(c, (Say)status.MPI_TAG, status.MPI_SOURCE);
    }
}

static bool progress(Comm *c) {
    const Mpi *mpi = c->host_state;
    bool any = take_announcements(c);
    for (Exchange *x = mpi->active; x; x = x->next) any = advance(mpi, x) || any;
    return any;
}

static void mpi_start(Comm *c, CommWork *w) {
    Mpi *mpi = c->host_state;
    CommChannel *ch = w->channel;
    Exchange *x = exchange_new(w);
    w->state = x;
    x->next = mpi->active;
    mpi->active = x;
    for (int i = 1; i < ch->members; i++) announce(mpi, x, (ch->member + i) % ch->members);
    for (Early **at = (Early **)&ch->state, *e; (e = *at);) {
        if (e->said.seq != w->seq) {
            at = &e->next;
            continue;
        }
        *at = e->next;
        hear(c, x, &e->said);
        free(e);
    }
    check_returned(c, x);
    progress(c);
}

/* A waiting rank leaves the core to other ranks: first by yielding, then by sleeping. */
static void rest(int idle) {
    enum { YIELDS = 50, STEP_NS = 20000, LONGEST_NS = 500000 };
    const int64_t ns = (int64_t)STEP_NS * (idle - YIELDS + 1);
    if (ns <= 0)
        sched_yield();
    else
        nanosleep(&(struct timespec){0, ns < LONGEST_NS ? (long)ns : LONGEST_NS}, NULL);
}

static void mpi_wait(Comm *c, CommWork *w) {
    Mpi *mpi = c->host_state;
    Exchange *x = w->state;
    const int64_t deadline = clock_ns() + (int64_t)(c->deadline_s * 1e9);
    for (int idle = 0; x->phase != FINISHED;) {
        if (progress(c))
            idle = 0;
        else if (clock_ns() >= deadline)
            late(c, x);
        else
            rest(idle++);
    }
    Exchange **at = &mpi->active;
    while (*at != x) at = &(*at)->next;
    *at = x->next;
    exchange_free(x);
}

/* ---- the world ---- */

bool comm_mpi_present(void) { return comm_processes() != 1; }

/* The lowest rank that has not announced its return; -1: none. */
static int still_running(const Comm *c) {
    const Mpi *mpi = c->host_state;
    for (int r = 0; r < c->world; r++)
        if (r != c->rank && !mpi->returned[r]) return r;
    return -1;
}

/* Whether this rank reports among those that have returned: all of them notice at the same time. */
static bool is_first(const Comm *c) {
    const Mpi *mpi = c->host_state;
    int r = 0;
    while (r < c->rank && !mpi->returned[r]) r++;
    return r == c->rank;
}

/* Tells all other ranks that this rank starts no more operations, so that a rank that waits for it knows at
 * once. Then waits for the same message from all of them. */
static void mpi_free(Comm *c) {
    Mpi *mpi = c->host_state;
    CHECK(c->open == 0, "rank %d leaves %d operations that it did not wait for", c->rank, c->open);
    for (int r = 0; r < c->world; r++)
        if (r != c->rank) say(c, RETURNED, (Announcement){0}, r);
    const int64_t deadline = clock_ns() + (int64_t)(c->deadline_s * 1e9);
    for (int r, idle = 0; (r = still_running(c)) >= 0; rest(idle++))
        if (!progress(c) && clock_ns() >= deadline + (is_first(c) ? 0 : PATIENCE_NS)) {
            fprintf(stderr, "COMM FAULT rank %d has returned, and rank %d has not for %g s\n", c->rank, r,
                    c->deadline_s);
            MPI_Abort(MPI_COMM_WORLD, ERR_INFRA);
        }
    MPI_CHECK(MPI_Cancel(&mpi->listening));
    MPI_CHECK(MPI_Wait(&mpi->listening, MPI_STATUS_IGNORE));
    MPI_CHECK(MPI_Comm_free(&mpi->control));
    MPI_CHECK(MPI_Comm_free(&mpi->data));
    fault_scope(mpi->outer);
    free(mpi->next_tag), free(mpi->returned), free(mpi->witness), free(mpi);
}

static void finalize(void) { MPI_Finalize(); }

/* MPI is initialised once in a process and ends with it; worlds may follow each other. */
static void begin_mpi(void) {
    int begun, level;
    MPI_CHECK(MPI_Initialized(&begun));
    if (begun) return;
    MPI_CHECK(MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level));
    CHECK(level >= MPI_THREAD_FUNNELED, "this MPI does not allow threads other than the one that calls it");
    MPI_CHECK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    CHECK(!atexit(finalize), "no memory for the end of MPI");
}

Comm *comm_mpi(const CommOptions *options) {
    static const CommTransport MPI = {.start = mpi_start, .wait = mpi_wait, .free = mpi_free, .end = mpi_end};
    int world, rank, found, *tag_limit;
    begin_mpi();
    MPI_CHECK(MPI_Comm_size(MPI_COMM_WORLD, &world));
    MPI_CHECK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    Mpi *mpi = mem_zero(1, sizeof *mpi);
    MPI_CHECK(MPI_Comm_dup(MPI_COMM_WORLD, &mpi->control));
    MPI_CHECK(MPI_Comm_dup(MPI_COMM_WORLD, &mpi->data));
    MPI_CHECK(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &tag_limit, &found));
    mpi->tag_end = found ? *tag_limit : 32767; /* the least that the standard allows */
    mpi->next_tag = mem_zero((size_t)world, sizeof *mpi->next_tag);
    mpi->returned = mem_zero((size_t)world, sizeof *mpi->returned);
    mpi->witness = mem_zero((size_t)world, sizeof *mpi->witness);
    snprintf(mpi->scope.where, sizeof mpi->scope.where, "rank %d", rank);
    mpi->outer = fault_scope(&mpi->scope);
    listen(mpi);
    Comm *c = mem_alloc(sizeof *c);
    comm_init(c, &MPI, mpi, world, rank, options);
    return c;
}

#endif
