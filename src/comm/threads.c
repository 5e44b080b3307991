/* The transport between ranks that run as threads of one process. Each member stores its buffers in the
 * operation's Meeting. Once the last member has arrived, any thread can move the elements. The last member
 * completes small operations itself, so that a rank blocks at most once per operation. Waiting members
 * complete larger operations in pieces. Once all members have started an operation, any waiting rank can
 * finish the operation, so ranks can wait in any order. */
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/mem.h"
#include "comm/transport.h"

enum {
    SMALL = 256 << 10, /* traffic in bytes below which a second thread is not worthwhile */
    PIECE = 256 << 10, /* traffic in bytes per piece */
};

enum { GATHERING, READY, DONE }; /* states of a Meeting */

typedef struct Meeting {
    int64_t seq;
    int arrived;
    const CommWork **work;               /* [members], NULL for a member that has not arrived yet */
    int64_t units, grain;                /* number of units in total, and per piece */
    atomic_int_fast64_t taken, finished; /* numbers of pieces */
    atomic_uint state;                   /* waiting threads sleep until this state changes */
    atomic_int sleepers, inside;         /* inside: number of members that have not finished waiting */
    struct Meeting *next;
} Meeting;

/* The state that a channel's members share. A meeting is open until all members have arrived. */
typedef struct Queue {
    pthread_mutex_t lock;
    CommKey key;
    int members;
    int64_t first;         /* sequence number of `open` */
    Meeting *open, *spare; /* open meetings, oldest first; unused meetings in any order */
} Queue;

typedef struct World {
    int size;
    Comm *comm;            /* [size] */
    atomic_bool *returned; /* [size] */
    pthread_mutex_t lock;  /* protects the table */
    CommTable queues;
    atomic_flag reported;
    CommMain *fn;
    void *arg;
} World;

/* ---- faults ---- */

/* Prints a report and ends the process. If several threads call this function, only the first call prints the
 * report. */
static _Noreturn void end_world(const Comm *c, const CommKey *key, int64_t seq, const CommFacts *facts,
                                const bool *arrived, const char *why) {
    World *world = c->host_state;
    if (atomic_flag_test_and_set(&world->reported))
        for (;;) pause();
    CommWitness *witness = mem_zero((size_t)world->size, sizeof *witness);
    for (int r = 0; r < world->size; r++) {
        witness[r].status = atomic_load(&world->returned[r]) ? "has returned" : "is running";
        witness[r].any = comm_record_last(&world->comm[r].recorder, &witness[r].last);
        witness[r].is_in = witness[r].any && !witness[r].last.done_ns;
    }
    comm_report(c, why, key, seq, facts, arrived, witness);
    for (int r = 0; r < world->size; r++) comm_say_farewell(&world->comm[r]);
    _exit(ERR_INFRA);
}

static _Noreturn void end_meeting(const Comm *c, const Queue *q, const Meeting *m, const char *why) {
    bool *arrived = mem_zero((size_t)q->members, sizeof *arrived);
    const CommWork *first = NULL;
    for (int i = q->members - 1; i >= 0; i--)
        if ((arrived[i] = m->work[i] != NULL)) first = m->work[i];
    end_world(c, &q->key, m->seq, &first->facts, arrived, why);
}

/* Returns an array [members] that states which members have started the operation. The caller frees it. */
static bool *who_started(World *world, const CommKey *key, int64_t seq) {
    bool *arrived = mem_zero((size_t)comm_members(key), sizeof *arrived);
    for (int i = 0; i < comm_members(key); i++)
        arrived[i] = comm_record_has(&world->comm[comm_member(key, i)].recorder, key, seq);
    return arrived;
}

static _Noreturn void threads_end(Comm *c, const CommKey *key, int64_t seq, const CommFacts *facts,
                                  const char *why) {
    end_world(c, key, seq, facts, who_started(c->host_state, key, seq), why);
}

static void threads_warn(Comm *c, const CommKey *key, int64_t seq, const CommFacts *facts) {
    bool *arrived = who_started(c->host_state, key, seq);
    comm_warn(c, key, seq, facts, arrived);
    free(arrived);
}

/* Checks that a new member's description of the operation matches those from earlier members. One comparison suffices,
 * except for an all-to-all's pairwise counts. */
static void check_alike(const Comm *c, const Queue *q, const Meeting *m, const CommWork *w) {
    char why[512];
    const int me = w->channel->member;
    for (int i = 0; i < q->members; i++) {
        if (!m->work[i]) continue;
        const CommFacts mine = comm_facts_to(w, i), theirs = comm_facts_to(m->work[i], me);
        if (comm_mismatch(&mine, c->rank, &theirs, comm_member(&q->key, i), why)) end_meeting(c, q, m, why);
        if (w->call.kind != COMM_ALL_TO_ALL) break;
    }
}

static void check_returned(const Comm *c, const Queue *q, const Meeting *m) {
    const World *world = c->host_state;
    char why[160];
    for (int i = 0; i < q->members; i++) {
        const int rank = comm_member(&q->key, i);
        if (m->work[i] || !atomic_load(&world->returned[rank])) continue;
        snprintf(why, sizeof why, "rank %d has returned, but other ranks wait for it to start an operation",
                 rank);
        end_meeting(c, q, m, why);
    }
}

/* ---- meetings ---- */

static Queue *queue_of(World *world, const CommChannel *ch) {
    pthread_mutex_lock(&world->lock);
    void **place = comm_lookup(&world->queues, &ch->key);
    if (!*place) {
        Queue *q = mem_zero(1, sizeof *q);
        *q = (Queue){.key = ch->key, .members = ch->members};
        pthread_mutex_init(&q->lock, NULL);
        *place = q;
    }
    Queue *q = *place;
    pthread_mutex_unlock(&world->lock);
    return q;
}

static Meeting *meeting_new(Queue *q, int64_t seq) {
    Meeting *m = q->spare;
    if (m)
        q->spare = m->next;
    else {
        m = mem_zero(1, sizeof *m);
        m->work = mem_zero((size_t)q->members, sizeof *m->work);
    }
    for (int i = 0; i < q->members; i++) m->work[i] = NULL;
    m->seq = seq, m->arrived = 0, m->next = NULL;
    atomic_store(&m->taken, 0), atomic_store(&m->finished, 0);
    atomic_store(&m->state, GATHERING), atomic_store(&m->inside, q->members);
    return m;
}

/* Returns the open meeting of an operation. Members arrive in sequence, so complete meetings are the oldest. */
static Meeting *meeting_at(Queue *q, int64_t seq) {
    Meeting **at = &q->open;
    for (int64_t s = q->first; s < seq; s++) at = &(*at)->next;
    if (!*at) *at = meeting_new(q, seq);
    return *at;
}

static void wake(Meeting *m, unsigned state, int threads) {
    atomic_store(&m->state, state);
    if (atomic_load(&m->sleepers)) syscall(SYS_futex, &m->state, FUTEX_WAKE_PRIVATE, threads, NULL, NULL, 0);
}

/* Sleeps while the meeting is in this state, but not beyond `deadline` (clock_ns). */
static void sleep_on(Meeting *m, unsigned state, int64_t deadline) {
    const struct timespec until = {deadline / 1000000000, deadline % 1000000000};
    atomic_fetch_add(&m->sleepers, 1);
    syscall(SYS_futex, &m->state, FUTEX_WAIT_BITSET_PRIVATE, state, &until, NULL, FUTEX_BITSET_MATCH_ANY);
    atomic_fetch_sub(&m->sleepers, 1);
}

/* Moves pieces until all pieces are taken. */
static void help(Meeting *m, int members) {
    const int64_t pieces = (m->units + m->grain - 1) / m->grain;
    for (int64_t p; (p = atomic_fetch_add(&m->taken, 1)) < pieces;) {
        const int64_t begin = p * m->grain, end = begin + m->grain;
        comm_move(m->work, members, begin, end < m->units ? end : m->units);
        if (atomic_fetch_add(&m->finished, 1) + 1 == pieces) wake(m, DONE, INT_MAX);
    }
}

/* Begins the operation once all members have arrived. */
static void begin(Meeting *m, int members) {
    const int64_t traffic = comm_traffic(m->work, members);
    m->units = comm_units(m->work, members);
    m->grain = traffic > PIECE ? (m->units * PIECE + traffic - 1) / traffic : m->units;
    if (traffic > SMALL) {
        wake(m, READY, 1); /* a waiting member can begin while this rank continues */
        return;
    }
    comm_move(m->work, members, 0, m->units);
    wake(m, DONE, INT_MAX);
}

static void threads_start(Comm *c, CommWork *w) {
    CommChannel *ch = w->channel;
    if (!ch->state) ch->state = queue_of(c->host_state, ch);
    Queue *q = ch->state;
    pthread_mutex_lock(&q->lock);
    Meeting *m = meeting_at(q, w->seq);
    check_alike(c, q, m, w);
    m->work[ch->member] = w;
    w->state = m;
    const bool last = ++m->arrived == q->members;
    if (last)
        q->open = m->next, q->first++;
    else
        check_returned(c, q, m);
    pthread_mutex_unlock(&q->lock);
    if (last) begin(m, q->members);
}

static void late(Comm *c, Queue *q, const Meeting *m) {
    pthread_mutex_lock(&q->lock);
    if (m->arrived < q->members) {
        char why[120];
        snprintf(why, sizeof why, "rank %d has waited %g s for ranks that are late", c->rank, c->deadline_s);
        end_meeting(c, q, m, why);
    }
    pthread_mutex_unlock(&q->lock);
}

static void warn(const Comm *c, Queue *q, const Meeting *m, const CommWork *w) {
    bool *arrived = mem_zero((size_t)q->members, sizeof *arrived);
    pthread_mutex_lock(&q->lock);
    for (int i = 0; i < q->members; i++) arrived[i] = m->work[i] != NULL;
    pthread_mutex_unlock(&q->lock);
    comm_warn(c, &q->key, w->seq, &w->facts, arrived);
    free(arrived);
}

static void threads_wait(Comm *c, CommWork *w) {
    Meeting *m = w->state;
    Queue *q = w->channel->state;
    const int64_t begin = clock_ns(), deadline = begin + comm_deadline_ns(c);
    int64_t until = begin + comm_warning_ns(c);
    for (unsigned state; (state = atomic_load(&m->state)) != DONE;) {
        if (state == READY) {
            help(m, q->members);
        } else if (clock_ns() >= deadline) {
            late(c, q, m);
        } else if (until < deadline && clock_ns() >= until) {
            warn(c, q, m, w);
            until = deadline;
        }
        if (atomic_load(&m->state) == state) sleep_on(m, state, state == READY ? INT64_MAX : until);
    }
    if (atomic_fetch_sub(&m->inside, 1) > 1) return;
    pthread_mutex_lock(&q->lock);
    m->next = q->spare;
    q->spare = m;
    pthread_mutex_unlock(&q->lock);
}

/* ---- the world ---- */

/* Removes this rank from the world once its function has returned. It is a fault if another rank still waits for this
 * rank. */
static void leave(Comm *c) {
    World *world = c->host_state;
    CHECK(c->open == 0, "rank %d returned without waiting for %d operations", c->rank, c->open);
    atomic_store(&world->returned[c->rank], true);
    pthread_mutex_lock(&world->lock);
    for (size_t i = 0; i < world->queues.capacity; i++) {
        Queue *q = world->queues.entry[i].value;
        if (!q) continue;
        pthread_mutex_lock(&q->lock);
        for (const Meeting *m = q->open; m; m = m->next) check_returned(c, q, m);
        pthread_mutex_unlock(&q->lock);
    }
    pthread_mutex_unlock(&world->lock);
}

static void *rank_main(void *arg) {
    Comm *c = arg;
    const World *world = c->host_state;
    FaultScope scope = {0};
    snprintf(scope.where, sizeof scope.where, "rank %d", c->rank);
    FaultScope *outer = fault_scope(&scope);
    world->fn(world->arg, c);
    leave(c);
    fault_scope(outer);
    return NULL;
}

static void queue_free(Queue *q) {
    if (!q) return;
    for (Meeting *m = q->spare, *next; m; m = next) {
        next = m->next;
        free(m->work);
        free(m);
    }
    pthread_mutex_destroy(&q->lock);
    free(q);
}

void comm_threads(int size, const CommOptions *options, CommMain *fn, void *arg) {
    static const CommTransport THREADS = {
        .start = threads_start, .wait = threads_wait, .end = threads_end, .warn = threads_warn};
    World world = {.size = size, .reported = ATOMIC_FLAG_INIT, .fn = fn, .arg = arg};
    pthread_mutex_init(&world.lock, NULL);
    world.comm = mem_zero((size_t)size, sizeof *world.comm);
    world.returned = mem_zero((size_t)size, sizeof *world.returned);
    pthread_t *thread = mem_zero((size_t)size, sizeof *thread);
    for (int r = 0; r < size; r++) comm_init(&world.comm[r], &THREADS, &world, size, r, options);
    for (int r = 1; r < size; r++) {
        const int rc = pthread_create(&thread[r], NULL, rank_main, &world.comm[r]);
        CHECK(rc == 0, "cannot start the thread of rank %d of %d: error %d", r, size, rc);
    }
    rank_main(&world.comm[0]);
    for (int r = 1; r < size; r++) pthread_join(thread[r], NULL);
    for (int r = 0; r < size; r++) comm_close(&world.comm[r]);
    for (size_t i = 0; i < world.queues.capacity; i++) queue_free(world.queues.entry[i].value);
    free(world.queues.entry);
    free(world.comm), free(world.returned), free(thread);
    pthread_mutex_destroy(&world.lock);
}
