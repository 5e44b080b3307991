#include "server/queue.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/mem.h"

enum { MAX_CHOICES = 1 << 20 }; /* maximum number of choices per ticket */

struct Ticket {
    Queue *queue;
    int64_t slot, n; /* choice i is the engine's request with the number slot * MAX_CHOICES + i */
    Request *requests;
    bool *ended; /* [n]: whether the connection has counted the choice as ended */
    int wake;    /* an eventfd that wakes the waiting connection */
    TicketEvents events;
    int64_t taken; /* time when the connection last took events, in ns (monotonic clock) */
    Err refused;
    bool stopped, lost;
    int64_t pending; /* number of posted events that have not been delivered */
    /* released: whether the connection has released the ticket, so that no thread reads the ticket's events;
     * closed: whether the engine has ended the ticket's requests */
    bool released, closed;
};

/* A signal for the fleet. The sender of a signal waits until the signal has taken effect. */
typedef struct Sent {
    FleetSignal signal;
    const char *path;
    SignalResult result;
    bool done;
} Sent;

/* An action that the engine's thread must perform. */
typedef struct Entry {
    enum { ENTRY_ADD, ENTRY_ABORT, ENTRY_RELEASE, ENTRY_SIGNAL } kind;
    Ticket *ticket;
    int64_t choice;
    Sent *sent;
} Entry;

typedef struct EntryList {
    Entry *at;
    size_t n;
} EntryList;

/* The lock guards all members of the queue except `step`. In a ticket, the lock guards `ended` and all members after
 * it. After each step, the engine's thread posts the step's events, and `courier` delivers them to their tickets. The
 * next pass therefore does not wait until all connections have been woken. Waking a connection takes a few
 * microseconds. */
struct Queue {
    pthread_mutex_t lock;
    /* answered: notifies senders of FleetSignals that have taken effect */
    pthread_cond_t filled, answered, post;
    pthread_t courier;
    /* events have the engine's request ids; only the engine's thread uses `step` */
    TicketEvents step, posted;
    bool ends; /* whether the courier must end after it has delivered all events */
    QueueLimits limits;
    EntryList entries;
    Ticket **tickets;    /* [slots]: NULL if the slot is free */
    int64_t slots, open; /* open: number of requests that have not ended */
    bool idle;           /* true if the last pass had nothing to compute */
    QueueCounts counts;
};

static void *deliver_events(void *arg);

Queue *queue_new(QueueLimits limits) {
    Queue *q = mem_zero(1, sizeof *q);
    *q = (Queue){.limits = limits, .idle = true};
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->filled, NULL), pthread_cond_init(&q->answered, NULL);
    pthread_cond_init(&q->post, NULL);
    const int e = pthread_create(&q->courier, NULL, deliver_events, q);
    CHECK(!e, "cannot start a thread: %s", strerror(e));
    return q;
}

void queue_free(Queue *q) {
    pthread_mutex_lock(&q->lock);
    q->ends = true;
    pthread_cond_signal(&q->post);
    pthread_mutex_unlock(&q->lock);
    pthread_join(q->courier, NULL);
    CHECK(!q->counts.tickets, "%lld tickets have not been released", (long long)q->counts.tickets);
    pthread_mutex_destroy(&q->lock), pthread_cond_destroy(&q->filled), pthread_cond_destroy(&q->answered);
    pthread_cond_destroy(&q->post);
    ticket_events_free(&q->step), ticket_events_free(&q->posted);
    free(q->entries.at), free(q->tickets), free(q);
}

QueueCounts queue_counts(Queue *q) {
    pthread_mutex_lock(&q->lock);
    QueueCounts counts = q->counts;
    const int64_t waiting = q->open - counts.engine.running;
    /* an ended request may count as running until the next pass */
    counts.waiting = waiting > 0 ? waiting : 0;
    pthread_mutex_unlock(&q->lock);
    return counts;
}

static void add_entry(Queue *q, Entry entry) {
    q->entries.at = mem_grow(q->entries.at, q->entries.n + 1, sizeof *q->entries.at);
    q->entries.at[q->entries.n++] = entry;
    pthread_cond_signal(&q->filled);
}

/* ---- tickets ---- */

static Ticket *ticket_new(Queue *q, const Request *requests, int64_t n) {
    Ticket *ticket = mem_zero(1, sizeof *ticket);
    *ticket =
        (Ticket){.queue = q, .n = n, .wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .taken = clock_ns()};
    ticket->requests = mem_alloc((size_t)n * sizeof *requests);
    memcpy(ticket->requests, requests, (size_t)n * sizeof *requests);
    for (Request *r = ticket->requests; r < ticket->requests + n; r++) request_copy(r);
    ticket->ended = mem_zero((size_t)n, sizeof *ticket->ended);
    return ticket;
}

void ticket_events_free(TicketEvents *events) {
    free(events->at), free(events->likeliest);
    *events = (TicketEvents){0};
}

static void ticket_free(Ticket *ticket) {
    if (ticket->wake >= 0) close(ticket->wake);
    ticket_events_free(&ticket->events);
    for (int64_t i = 0; i < ticket->n; i++) request_free(&ticket->requests[i]);
    free(ticket->requests), free(ticket->ended), free(ticket);
}

static void wake(Ticket *ticket) {
    const ssize_t written = write(ticket->wake, &(uint64_t){1}, sizeof(uint64_t));
    CHECK(written == sizeof(uint64_t) || errno == EAGAIN, "cannot wake a connection: %s", strerror(errno));
}

/* Adds a ticket to the queue's tables. */
static void enter(Queue *q, Ticket *ticket) {
    int64_t slot = 0;
    while (slot < q->slots && q->tickets[slot]) slot++;
    if (slot == q->slots) q->tickets = mem_grow(q->tickets, (size_t)++q->slots, sizeof *q->tickets);
    q->tickets[slot] = ticket;
    ticket->slot = slot;
    q->open += ticket->n;
    q->counts.tickets++, q->counts.connected++;
    for (int64_t i = 0; i < ticket->n; i++) ticket->requests[i].id = slot * MAX_CHOICES + i;
    add_entry(q, (Entry){.kind = ENTRY_ADD, .ticket = ticket});
}

QueueAnswer queue_submit(Queue *q, const Request *requests, int64_t n, Ticket **out) {
    CHECK(n > 0 && n <= MAX_CHOICES, "a ticket cannot have %lld requests", (long long)n);
    Ticket *ticket = ticket_new(q, requests, n);
    pthread_mutex_lock(&q->lock);
    const QueueAnswer answer = q->counts.closed || ticket->wake < 0                  ? QUEUE_STOPS
                               : q->open + n > q->limits.running + q->limits.waiting ? QUEUE_FULL
                                                                                     : QUEUE_TAKEN;
    if (answer == QUEUE_TAKEN) enter(q, ticket);
    pthread_mutex_unlock(&q->lock);
    if (answer == QUEUE_TAKEN)
        *out = ticket;
    else
        ticket_free(ticket);
    return answer;
}

static TicketState take_state(Ticket *ticket, TicketEvents *out, Err *refused) {
    pthread_mutex_lock(&ticket->queue->lock);
    *out = ticket->events;
    ticket->events = (TicketEvents){0};
    ticket->taken = clock_ns();
    *refused = ticket->refused;
    const TicketState state = ticket->refused.code ? TICKET_REFUSED
                              : ticket->lost       ? TICKET_LOST
                              : out->n             ? TICKET_HAS_EVENTS
                              : ticket->stopped    ? TICKET_STOPPED
                                                   : TICKET_QUIET;
    pthread_mutex_unlock(&ticket->queue->lock);
    return state;
}

TicketState ticket_wait(Ticket *ticket, int socket, int64_t ms, TicketEvents *out, Err *refused) {
    const int64_t until = clock_ns() + ms * 1000000;
    for (;;) {
        const TicketState state = take_state(ticket, out, refused);
        const int64_t left = until - clock_ns();
        if (state != TICKET_QUIET || left <= 0) return state;
        struct pollfd fds[] = {{.fd = ticket->wake, .events = POLLIN}, {.fd = socket, .events = POLLRDHUP}};
        uint64_t count;
        if (poll(fds, 2, (int)(left / 1000000) + 1) < 0) continue;
        if (fds[1].revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) return TICKET_LOST;
        if (fds[0].revents && read(ticket->wake, &count, sizeof count) < 0) continue;
    }
}

static void count_end(Queue *q, Ticket *ticket, int64_t choice, Reason reason) {
    if (ticket->ended[choice]) return;
    ticket->ended[choice] = true;
    q->open--;
    q->counts.ended[reason]++;
}

/* Ends a choice. Aborts the choice if the engine has not ended it. */
static void abort_choice(Queue *q, Ticket *ticket, int64_t choice, Reason reason) {
    count_end(q, ticket, choice, reason);
    add_entry(q, (Entry){.kind = ENTRY_ABORT, .ticket = ticket, .choice = choice});
}

void ticket_end(Ticket *ticket, int64_t choice, Reason reason) {
    Queue *q = ticket->queue;
    pthread_mutex_lock(&q->lock);
    abort_choice(q, ticket, choice, reason);
    pthread_mutex_unlock(&q->lock);
}

void ticket_release(Ticket *ticket) {
    Queue *q = ticket->queue;
    pthread_mutex_lock(&q->lock);
    for (int64_t i = 0; i < ticket->n; i++) count_end(q, ticket, i, REASON_ABORT);
    ticket->released = true;
    q->counts.connected--;
    add_entry(q, (Entry){.kind = ENTRY_RELEASE, .ticket = ticket});
    pthread_mutex_unlock(&q->lock);
}

SignalResult queue_signal(Queue *q, FleetSignal signal, const char *path) {
    Sent sent = {.signal = signal, .path = path};
    pthread_mutex_lock(&q->lock);
    if (q->counts.closed)
        sent.result.sent = err_infra("the server is shutting down: send the signal to another server"),
        sent.done = true;
    if (!sent.done) add_entry(q, (Entry){.kind = ENTRY_SIGNAL, .sent = &sent});
    while (!sent.done) pthread_cond_wait(&q->answered, &q->lock);
    pthread_mutex_unlock(&q->lock);
    return sent.result;
}

/* ---- the engine's thread ---- */

static void add_requests(Queue *q, Fleet *fleet, Ticket *ticket) {
    Err e = ERR_OK;
    for (int64_t i = 0; i < ticket->n && !e.code; i++) e = fleet_add(fleet, &ticket->requests[i]);
    pthread_mutex_lock(&q->lock);
    for (int64_t i = 0; i < ticket->n; i++) q->counts.prompt_tokens += ticket->requests[i].n;
    ticket->refused = e;
    if (e.code) wake(ticket);
    pthread_mutex_unlock(&q->lock);
}

/* Frees the ticket, unless the engine or the courier still uses it. */
static void remove_unused(Queue *q, Ticket *ticket) {
    if (!ticket->closed || ticket->pending) return;
    q->tickets[ticket->slot] = NULL;
    q->counts.tickets--;
    ticket_free(ticket);
}

static void release(Queue *q, Fleet *fleet, Ticket *ticket) {
    for (int64_t i = 0; i < ticket->n; i++) fleet_abort(fleet, ticket->requests[i].id);
    pthread_mutex_lock(&q->lock);
    ticket->closed = true;
    remove_unused(q, ticket);
    pthread_mutex_unlock(&q->lock);
}

static Ticket *ticket_of(const Queue *q, const TicketEvent *e) {
    return q->tickets[e->event.id / MAX_CHOICES];
}

/* Appends an event with its most likely tokens. */
static void add_event(TicketEvents *to, const EngineEvent *event, int64_t id, const LikelyToken *likeliest) {
    const int64_t n = likeliest ? event->n_likeliest : 0;
    to->at = mem_grow(to->at, (size_t)to->n + 1, sizeof *to->at);
    TicketEvent *added = &to->at[to->n++];
    *added = (TicketEvent){*event, to->n_likeliest};
    added->event.id = id, added->event.likeliest = NULL;
    if (!n) return;
    to->likeliest = mem_grow(to->likeliest, (size_t)(to->n_likeliest + n), sizeof *to->likeliest);
    memcpy(to->likeliest + to->n_likeliest, likeliest, (size_t)n * sizeof *to->likeliest);
    to->n_likeliest += n;
}

/* Appends an event from one list to another list. */
static void copy_event(TicketEvents *to, const TicketEvents *from, const TicketEvent *e, int64_t id) {
    add_event(to, &e->event, id, e->event.n_likeliest ? from->likeliest + e->likeliest : NULL);
}

static void take_event(void *arg, const EngineEvent *event) {
    add_event(&((Queue *)arg)->step, event, event->id, event->likeliest);
}

static void count_engine(Queue *q, Fleet *fleet) {
    q->counts.engine = fleet_counts(fleet);
    q->counts.state = fleet_state(fleet);
}

/* Runs a step, and posts its events. Returns false if there was nothing to compute. */
static bool run_step(Queue *q, Fleet *fleet) {
    const bool worked = fleet_step(fleet, take_event, q);
    pthread_mutex_lock(&q->lock);
    for (int64_t i = 0; i < q->step.n; i++) {
        const TicketEvent *e = &q->step.at[i];
        copy_event(&q->posted, &q->step, e, e->event.id);
        ticket_of(q, e)->pending++, q->counts.undelivered++;
    }
    q->step.n = q->step.n_likeliest = 0;
    count_engine(q, fleet);
    pthread_cond_signal(&q->post);
    pthread_mutex_unlock(&q->lock);
    return worked;
}

/* Sends a signal and, if the signal is allowed, runs steps until the fleet has reached its new state. A
 * signal that does not change the state needs one step. */
static void send_signal(Queue *q, Fleet *fleet, Sent *sent) {
    SignalResult result = {.sent = fleet_signal(fleet, sent->signal, sent->path)};
    if (!result.sent.code) do
            run_step(q, fleet);
        while (fleet_state_settled(fleet_state(fleet)) != fleet_state(fleet));
    if (!result.sent.code && sent->signal == SIGNAL_WEIGHTS) result.loaded = fleet_loaded(fleet);
    pthread_mutex_lock(&q->lock);
    count_engine(q, fleet);
    result.state = q->counts.state, result.weights = q->counts.engine.weights;
    sent->result = result, sent->done = true;
    pthread_cond_broadcast(&q->answered);
    pthread_mutex_unlock(&q->lock);
}

static void run_entry(Queue *q, Fleet *fleet, const Entry *entry) {
    if (entry->kind == ENTRY_SIGNAL) send_signal(q, fleet, entry->sent);
    if (entry->kind == ENTRY_ADD) add_requests(q, fleet, entry->ticket);
    if (entry->kind == ENTRY_ABORT) fleet_abort(fleet, entry->ticket->requests[entry->choice].id);
    if (entry->kind == ENTRY_RELEASE) release(q, fleet, entry->ticket);
}

/* Returns whether a ticket has many events because its connection waits for a client that does not read. */
static bool is_unread(const Queue *q, const Ticket *ticket) {
    const size_t bytes = (size_t)ticket->events.n * sizeof *ticket->events.at +
                         (size_t)ticket->events.n_likeliest * sizeof *ticket->events.likeliest;
    return (int64_t)bytes > q->limits.unread_bytes &&
           clock_ns() - ticket->taken > q->limits.unread_ms * 1000000;
}

/* ---- the courier's thread ---- */

/* Adds an event to its ticket. Returns the ticket if its connection must be woken. */
static Ticket *deliver(Queue *q, const TicketEvents *events, const TicketEvent *e) {
    Ticket *ticket = ticket_of(q, e);
    const bool read = !ticket->lost && !ticket->released, first = !ticket->events.n;
    if (read) copy_event(&ticket->events, events, e, e->event.id % MAX_CHOICES);
    q->counts.new_tokens += e->event.kind == EVENT_TOKEN;
    if (!read || !is_unread(q, ticket)) return read && first ? ticket : NULL;
    ticket->lost = true;
    ticket_events_free(&ticket->events);
    for (int64_t i = 0; i < ticket->n; i++) abort_choice(q, ticket, i, REASON_ABORT);
    return NULL;
}

/* Delivers events, and unlocks the queue while it wakes connections, because the connections need the
 * lock. */
static void deliver_all(Queue *q, const TicketEvents *events) {
    for (int64_t i = 0; i < events->n; i++) {
        Ticket *woken = deliver(q, events, &events->at[i]);
        if (!woken) continue;
        pthread_mutex_unlock(&q->lock);
        wake(woken); /* the ticket still exists, because it has pending events */
        pthread_mutex_lock(&q->lock);
    }
    for (int64_t i = 0; i < events->n; i++) {
        Ticket *ticket = ticket_of(q, &events->at[i]);
        ticket->pending--, q->counts.undelivered--;
        remove_unused(q, ticket);
    }
}

static void *deliver_events(void *arg) {
    Queue *q = arg;
    pthread_mutex_lock(&q->lock);
    while (q->posted.n || !q->ends) {
        TicketEvents events = q->posted;
        q->posted = (TicketEvents){0};
        deliver_all(q, &events);
        ticket_events_free(&events);
        if (!q->posted.n && !q->ends) pthread_cond_wait(&q->post, &q->lock);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

/* ---- turns ---- */

static EntryList take_entries(Queue *q, int ms, bool *stopped) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += (long)ms * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000, until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&q->lock);
    if (q->idle && !q->entries.n) pthread_cond_timedwait(&q->filled, &q->lock, &until);
    const EntryList list = q->entries;
    q->entries = (EntryList){0};
    *stopped = q->counts.stopped;
    pthread_mutex_unlock(&q->lock);
    return list;
}

void queue_turn(Queue *q, Fleet *fleet, int ms) {
    bool stopped;
    const EntryList list = take_entries(q, ms, &stopped);
    for (size_t i = 0; i < list.n; i++) run_entry(q, fleet, &list.at[i]);
    free(list.at);
    const bool idle = stopped || !run_step(q, fleet);
    pthread_mutex_lock(&q->lock);
    q->idle = idle;
    pthread_mutex_unlock(&q->lock);
}

void queue_close(Queue *q) {
    pthread_mutex_lock(&q->lock);
    q->counts.closed = true;
    pthread_mutex_unlock(&q->lock);
}

void queue_stop(Queue *q) {
    pthread_mutex_lock(&q->lock);
    q->counts.closed = q->counts.stopped = true;
    for (int64_t i = 0; i < q->slots; i++)
        if (q->tickets[i]) q->tickets[i]->stopped = true, wake(q->tickets[i]);
    pthread_mutex_unlock(&q->lock);
}
